package metrics

import (
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// MaxModels is the number of models with separate series. Engines report the models
	// that they serve, and may report others later.
	MaxModels = 200
	// otherModels is the label of all others.
	otherModels = "other"
	// maxLabel is how long a model's label may be, in bytes.
	maxLabel = 128
)

// names bound what labels that are not weir's own become.
type names struct {
	labels known[string] // by name
	adding sync.Mutex
}

// label returns the label for a name: the name itself, unless there are too many.
func (n *names) label(name string) string {
	label, _ := n.of(name)
	return label
}

// of returns the label for a name, and whether it is the name's own.
func (n *names) of(name string) (label string, own bool) {
	if l, ok := n.labels.get(name); ok {
		return l, true
	}
	if n.labels.size() >= MaxModels {
		return otherModels, false
	}
	n.adding.Lock()
	defer n.adding.Unlock()
	if l, ok := n.labels.get(name); ok {
		return l, true
	}
	if n.labels.size() >= MaxModels {
		return otherModels, false
	}
	return n.labels.add(name, printable(name)), true
}

// printable is a name as a label can have it.
func printable(name string) string {
	if len(name) > maxLabel {
		name = name[:maxLabel-3] + "..."
	}
	if utf8.ValidString(name) {
		return name
	}
	return strings.ToValidUTF8(name, "?")
}
