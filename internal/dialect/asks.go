package dialect

import "weir/internal/infer"

// Judged is an Endpoint of which engines that serve it by themselves differ in what they
// read, and in what a mode of theirs takes away.
type Judged interface {
	Endpoint
	// Asks gives the fields that are judged where the request is relayed.
	Asks() Asks
}

// Asks are the fields of a body, by name, of which an engine may be known to lose what
// they ask for. All others pass.
type Asks map[string]Ask

// An Ask is what a field asks an engine's own API for.
type Ask struct {
	Needs infer.Carries
	// Defaults are values besides null that ask for nothing, in canonical JSON
	// (RFC 8785).
	Defaults []string
	// Path is where the field's value asks for it; empty: at the field itself.
	Path string
	// Read says what the value needs, where that is not all of Needs. A value that it
	// cannot read needs nothing: the engine refuses it.
	Read func(h *Head, raw []byte) infer.Carries
}

// needs gives what the value of a field asks for.
func (a *Ask) needs(h *Head, raw []byte) infer.Carries {
	switch {
	case AsksForNothing(raw, a.Defaults):
		return 0
	case a.Read != nil:
		return a.Read(h, raw)
	}
	return a.Needs
}

// Needs gives what an engine's own API must carry for a relayed body.
func (h *Head) Needs(asks Asks) (needs infer.Carries) {
	for i := range h.Fields {
		at := &h.Fields[i]
		if a, ok := asks[at.Name]; ok {
			needs |= a.needs(h, h.Body[at.Start:at.End])
		}
	}
	return needs
}

// Asking gives the first field that asks for some of what is lacking, and all of what is
// lacking that it asks for.
func (h *Head) Asking(asks Asks, lacking infer.Carries) (path string, lacks infer.Carries) {
	for i := range h.Fields {
		at := &h.Fields[i]
		a, ok := asks[at.Name]
		if !ok {
			continue
		}
		if lacks = a.needs(h, h.Body[at.Start:at.End]) & lacking; lacks != 0 {
			if a.Path != "" {
				return a.Path, lacks
			}
			return at.Name, lacks
		}
	}
	return "", 0
}

// Value gives that of a top-level field, the last where it stands more than once; nil
// where it is not there, or null.
func (h *Head) Value(name string) (raw []byte) {
	for i := range h.Fields {
		if at := &h.Fields[i]; at.Name == name {
			raw = h.Body[at.Start:at.End]
		}
	}
	if raw == nil || KindOf(raw) == 'n' {
		return nil
	}
	return raw
}

// AskSeed is the Read of a seed: it asks for nothing where nothing is drawn.
func AskSeed(needs infer.Carries) func(*Head, []byte) infer.Carries {
	return func(h *Head, _ []byte) infer.Carries {
		if t := h.Value("temperature"); t != nil && AsksForNothing(t, []string{"0"}) {
			return 0
		}
		if k := h.Value("top_k"); k != nil && AsksForNothing(k, []string{"1"}) {
			return 0
		}
		return needs
	}
}

// AskType gives the member "type" of an object; empty where there is none.
func AskType(raw []byte) (kind string) {
	if KindOf(raw) != '{' {
		return ""
	}
	_ = EachMember(raw, func(name string, value []byte) error {
		if name == "type" && KindOf(value) == '"' {
			kind = NameOf(value)
		}
		return nil
	})
	return kind
}
