package jinja

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// now is the time that the reference's strftime_now shows in goldens.
func now() time.Time { return time.Date(2026, 3, 7, 5, 6, 9, 12345000, time.UTC) }

// render renders a template with variables given as JSON.
func render(t testing.TB, source, vars string) (string, error) {
	t.Helper()
	v, err := DecodeJSON([]byte(vars))
	if err != nil {
		t.Fatalf("vars: %v", err)
	}
	m := map[string]Value{}
	for k, v := range v.(*Dict).All() {
		m[k] = v
	}
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(nil, m, Options{Now: now()})
	return string(out), err
}

// kindOf returns the reference's class for an error of ours, "" where it has
// several.
func kindOf(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return "not an *Error"
	}
	switch e.Kind {
	case KindUndefined:
		return "UndefinedError"
	case KindType:
		return "TypeError"
	case KindRaised:
		return "Raised"
	case KindSecurity:
		return "SecurityError"
	}
	return ""
}

func lines(t *testing.T, path string, row func([]byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		row(sc.Bytes())
	}
	if sc.Err() != nil {
		t.Fatal(sc.Err())
	}
}

// TestExpressions compares every expression of exprs.txt on every value of
// values.txt with the reference: the text, or the class of the failure.
func TestExpressions(t *testing.T) {
	raw, err := os.ReadFile("testdata/values.txt")
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	cases, refused := 0, 0
	lines(t, "testdata/exprs.golden.jsonl", func(line []byte) {
		var row struct {
			Expr    string
			Results []string
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		if len(row.Results) != len(values) {
			t.Fatalf("%s: %d results for %d values; run interop/templates/generate.py", row.Expr, len(row.Results), len(values))
		}
		for i, want := range row.Results {
			if want == "?" {
				continue // an address, or a lone surrogate
			}
			cases++
			got, err := render(t, "{% set v = "+values[i]+" %}{{ "+row.Expr+" }}", "{}")
			switch {
			case isKind(err, KindUnsupported, KindLimit):
				refused++
			case err != nil && want[0] == '=':
				t.Errorf("v = %s: {{ %s }}\n got error %v\nwant %q", values[i], row.Expr, err, want[1:])
			case err == nil && want != "="+got:
				t.Errorf("v = %s: {{ %s }}\n got %q\nwant %q", values[i], row.Expr, got, want)
			case err != nil && kindOf(err) != "" && kindOf(err) != want[1:]:
				t.Errorf("v = %s: {{ %s }}\n got error %v (%s)\nwant %s", values[i], row.Expr, err, kindOf(err), want[1:])
			}
		}
	})
	if cases < 10000 || refused > cases/100 {
		t.Errorf("%d cases compared, %d of them refused as unsupported; want 10000 and no more than a hundredth", cases, refused)
	}
}

// TestSnippets compares whole snippets of template text with the reference:
// the text, or the class (and for the words that callers see, the message) of
// the failure.
func TestSnippets(t *testing.T) {
	vars, err := os.ReadFile("testdata/vars.json")
	if err != nil {
		t.Fatal(err)
	}
	cases := 0
	lines(t, "testdata/snippets.golden.jsonl", func(line []byte) {
		var row struct {
			Source, Error, Message string
			Text, Skip             *string
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		cases++
		got, err := render(t, row.Source, string(vars))
		switch {
		case row.Skip != nil:
			if err != nil && !isKind(err, KindUnsupported) {
				t.Errorf("%s\n got error %v\nwant it unsupported or rendered", row.Source, err)
			}
		case row.Text != nil && err != nil:
			if !isKind(err, KindUnsupported) || !strings.Contains(row.Source, "block") {
				t.Errorf("%s\n got error %v\nwant %q", row.Source, err, *row.Text)
			}
		case row.Text != nil && got != *row.Text:
			t.Errorf("%s\n got %q\nwant %q", row.Source, got, *row.Text)
		case row.Text == nil && err == nil:
			t.Errorf("%s\n got %q\nwant %s: %s", row.Source, got, row.Error, row.Message)
		case row.Text == nil && kindOf(err) != "" && kindOf(err) != row.Error:
			t.Errorf("%s\n got %v\nwant %s: %s", row.Source, err, row.Error, row.Message)
		case row.Error == "UndefinedError" || row.Error == "Raised":
			var e *Error
			if errors.As(err, &e); e.Message != row.Message {
				t.Errorf("%s\n got %q\nwant %q", row.Source, e.Message, row.Message)
			}
		}
	})
	if cases < 100 {
		t.Errorf("only %d cases", cases)
	}
}
