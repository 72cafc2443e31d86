package model

import (
	"encoding/json"
	"reflect"
	"strings"

	"weir/internal/model/callid"
	"weir/internal/model/chat"
	"weir/internal/model/outputparse"
)

// chooseFormat returns the format in which a model writes. It is the format detected by
// template and vocabulary if that parses a call written by the template itself, or else
// the first format that does. If none does, the model's syntax is unknown, and tools
// are refused, because their calls would appear as text.
func (m *Folder) chooseFormat(told outputparse.Format) outputparse.Format {
	samples := m.Templates.Samples()
	if len(samples) == 0 || m.readsAny(told, samples, false) {
		return told
	}
	reasoning := told.Reasoning()
	if outputparse.Framed(reasoning) {
		reasoning = ""
	}
	for i := range samples {
		for _, name := range outputparse.ToolNames() {
			if f, ok := outputparse.Named(name, reasoning); ok && m.readsAny(f, samples[i:i+1], true) {
				return f
			}
		}
	}
	f, _ := outputparse.Named("", reasoning)
	return f
}

// Notes returns what whoever serves the model should know of its folder: a template that renders
// nothing, a parser of calls that is another model's, and calls that no parser reads.
func (m *Folder) Notes() (notes []string) {
	if m.Templates == nil {
		return nil
	}
	if t, err := m.Templates.Select("", false); err == nil && t.TakesNothing() {
		notes = append(notes, "its chat template fails on every conversation, so that each chat is refused")
	}
	samples, tools := m.Templates.Samples(), m.Format.Tools()
	if len(samples) == 0 || m.readsAny(m.Format, samples, false) {
		return notes
	}
	reasoning, _ := outputparse.Named("", m.Format.Reasoning())
	found := m.chooseFormat(reasoning).Tools()
	switch {
	case tools != "" && found != "":
		notes = append(notes, "its tool-parser "+tools+" reads none of the calls that its chat template writes; "+found+" does")
	case tools != "":
		notes = append(notes, "its tool-parser "+tools+" reads none of the calls that its chat template writes")
	case found == "":
		notes = append(notes, "no tool-parser reads the calls that its chat template writes, so that chats with tools are refused, unless tool_choice forces a call")
	}
	return notes
}

// CallIDs is the form of calls' ids that the chat template takes: as canaries show it, or else
// as the model writes them.
func (m *Folder) CallIDs() callid.Form {
	if t, err := m.Templates.Select("", true); err == nil && t.CallIDs() != callid.Any {
		return t.CallIDs()
	}
	return m.Format.CallIDs()
}

// Takes returns the table of what the chat template takes, of two that for tools.
func (m *Folder) Takes() []chat.Row {
	t, err := m.Templates.Select("", true)
	if err != nil {
		return nil
	}
	return t.Takes()
}

// readsAny reports whether a format reads one of the samples, or with alone reads it as
// nothing but the call.
func (m *Folder) readsAny(f outputparse.Format, samples []chat.Sample, alone bool) bool {
	for _, s := range samples {
		if reads(f, s, m.spoken(f, s.Answer), alone) {
			return true
		}
	}
	return false
}

// spoken leaves out the special tokens that a format's parser is not shown.
func (m *Folder) spoken(f outputparse.Format, answer string) string {
	for _, token := range m.Tokenizer.AddedTokens() {
		if token.Special && !f.Keeps(token.Content) {
			answer = strings.ReplaceAll(answer, token.Content, "")
		}
	}
	return answer
}

// reads reports whether a format finds the sample's call in an answer, with alone
// nothing before it.
func reads(f outputparse.Format, s chat.Sample, answer string, alone bool) bool {
	p := outputparse.New(outputparse.Options{Format: f, Calls: true, Tools: outputparse.ReadTools(s.Tools), Prompt: []byte(s.Prompt)})
	name, arguments, valid := "", "", false
	for _, e := range p.Append(nil, []byte(answer), true) {
		switch {
		case alone && e.Kind == outputparse.Content && name == "" && len(strings.TrimSpace(string(e.Text))) > 0:
			return false
		case e.Kind == outputparse.CallBegin && e.Call == 0:
			name = e.Name
		case e.Kind == outputparse.Arguments && e.Call == 0:
			arguments += string(e.Text)
		case e.Kind == outputparse.CallEnd && e.Call == 0:
			valid = e.Valid
		}
	}
	var got, want any
	return valid && name == s.Name && json.Unmarshal([]byte(arguments), &got) == nil &&
		json.Unmarshal([]byte(s.Arguments), &want) == nil && reflect.DeepEqual(got, want)
}
