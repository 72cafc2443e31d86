package chat

import (
	"slices"
	"strings"

	"weir/internal/model/callid"
)

// Row is what a template does with one kind of thing that a conversation has.
type Row struct {
	Of, How string
	// Plain is set if the template takes it as it comes, or by design has no use for it.
	Plain bool
}

// Takes returns the table of what a template takes, as canaries have shown.
func (t *Template) Takes() []Row {
	f := &t.form
	rows := []Row{
		f.row("system", f.at[system][atStart]),
		{Of: "later system", How: f.laterSystem()},
		{Of: "developer", How: f.developers()},
		f.row("user behind user", f.at[user][afterUser]),
		{Of: "tools", How: f.toldTools()},
		f.row("calls", f.calls),
		f.row("parallel calls", f.parallel),
		f.row("results", f.at[tool][afterCall]),
		{Of: "text beside calls", How: [...]string{"yes", "message before, later", "message before", "ignored"}[f.beside]},
		{Of: "cut arguments", How: "yes"},
	}
	for i := range rows {
		switch r := &rows[i]; {
		case r.Of == "system" && f.inQuestion:
			r.How = "in the last question"
		case r.Of == "user behind user" && r.How != "yes" && f.at[user][atStart] == shown:
			r.How = "joined"
		case r.Of == "parallel calls" && f.oneByOne:
			r.How = "one by one"
		case f.calls != shown && slices.Contains([]string{"text beside calls", "cut arguments"}, r.Of):
			r.How = f.calls.String()
		case r.Of == "cut arguments" && f.wrapArguments:
			r.How = "in an object"
		}
	}
	for i := range rows {
		rows[i].Plain = rows[i].How == "yes"
	}
	dropped := "nothing"
	if f.dropped != nil {
		dropped = strings.Join(f.dropped, ", ")
	}
	return append(rows, Row{Of: "dropped by design", How: dropped, Plain: true})
}

func (f *form) row(of string, v verdict) Row { return Row{Of: of, How: v.String()} }

// laterSystem says what becomes of system messages that are not the first.
func (f *form) laterSystem() string {
	var moved []string
	worst := shown
	for p := afterSystem; p < places; p++ {
		if p == afterCall || p == afterResult && f.calls != shown {
			continue
		}
		if v := f.at[system][p]; v != shown {
			worst, moved = max(worst, v), append(moved, p.String())
		}
	}
	switch {
	case moved == nil:
		return "yes"
	case f.at[system][atStart] != shown:
		return worst.String()
	case len(moved) == 1:
		return "in the first, if " + moved[0]
	}
	return "in the first"
}

func (f *form) developers() string {
	switch v := f.at[developer][atStart]; {
	case v == shown:
		return "yes"
	case f.at[system][atStart] == shown:
		return "as system"
	default:
		return v.String()
	}
}

// toldTools says how the model is told of tools.
func (f *form) toldTools() string {
	var filled []string
	if f.fillDescription {
		filled = append(filled, "description")
	}
	if f.fillParameters {
		filled = append(filled, "parameters")
	}
	switch {
	case f.tools == lost:
		return "ignored"
	case f.tools != shown:
		return f.tools.String()
	case f.toolsAfterSystem:
		return "with a system message"
	case filled != nil:
		return "with " + strings.Join(filled, " and ")
	}
	return "yes"
}

// TakesNothing reports whether the template fails on every canary.
func (t *Template) TakesNothing() bool {
	return t.form.at[user][atStart] != shown && t.form.at[system][atStart] != shown && t.form.calls != shown
}

// CallIDs is the form of calls' ids that canaries show the template to ask for, or callid.Any.
func (t *Template) CallIDs() callid.Form { return t.form.ids }

// Tools of a request, as a template takes them.
type Tools uint8

// The kinds of it.
const (
	ToolsShown   Tools = iota
	ToolsIgnored       // it has no place for them
	ToolsRefused       // it fails on them
)

// Tools returns what the template for tools does with those of a request.
func (s *Set) Tools() Tools {
	t, err := s.Select("", true)
	if err != nil {
		return ToolsRefused
	}
	return Tools(t.form.tools)
}
