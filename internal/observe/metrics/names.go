package metrics

import (
	"strings"
	"sync"
	"sync/atomic"
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
	labels sync.Map // by name
	n      atomic.Int64
}

// label returns the label for a name: the name itself, unless there are too many.
func (n *names) label(name string) string {
	if l, ok := n.labels.Load(name); ok {
		return l.(string)
	}
	label := otherModels
	if at := n.n.Add(1); at <= MaxModels {
		label = printable(name)
	} else {
		n.n.Add(-1)
		return label
	}
	if l, there := n.labels.LoadOrStore(name, label); there {
		n.n.Add(-1)
		return l.(string)
	}
	return label
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
