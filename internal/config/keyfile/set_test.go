package keyfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/config"
)

// Fields are set in the lines of a file, and every other line stays: comments, order, blanks.
// Entries in braces become lines.
func TestSet(t *testing.T) {
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	const issuers = "issuers:\n  login:\n    issuer: https://login.example.com\n    audience: weir\n    tenant_claim: org\n"
	day := Field{"tokens_per_day", []string{"7"}}
	for _, test := range []struct {
		name, file, grant string
		fields            []Field
		want              string
	}{
		{"a value with its comment", "# who\nkeys:\n  # the first\n  a:\n    tokens_per_day: 5 # a day\n    hash: " + hash + "\n", "a", []Field{day},
			"# who\nkeys:\n  # the first\n  a:\n    tokens_per_day: 7 # a day\n    hash: " + hash + "\n"},
		{"a new field, before what is next", "keys:\n  a:\n    hash: " + hash + "\n\n  # b is next\n", "a", []Field{day, {"models", []string{"x", "y"}}, {"band", []string{"a b"}}},
			"keys:\n  a:\n    hash: " + hash + "\n    tokens_per_day: 7\n    models: [\"x\", \"y\"]\n    band: \"a b\"\n\n  # b is next\n"},
		{"a field taken out, and a list of lines", "keys:\n  a:\n    models:\n    - x\n    - y\n    share: 2\n    hash: " + hash + "\n", "a", []Field{{"models", nil}, {"share", nil}, {"max_requests", nil}},
			"keys:\n  a:\n    hash: " + hash + "\n"},
		{"braces", "keys: {a: {hash: '" + hash + "', share: 2}}\n", "a", []Field{day},
			"keys:\n  a:\n    hash: \"" + hash + "\"\n    share: 2\n    tokens_per_day: 7\n"},
		{"a certificate with nothing", "certificates:\n  batch.example: {}\n  other: {tenant: x}\n", "certificate:batch.example", []Field{day},
			"certificates:\n  batch.example:\n    tokens_per_day: 7\n  other: {tenant: x}\n"},
		{"an issuer's tenant that is new", issuers + "keys: {}\n", "login:Acme Inc", []Field{day},
			issuers + "    tenants:\n      \"Acme Inc\":\n        tokens_per_day: 7\nkeys: {}\n"},
		{"an issuer's tenant", issuers + "    tenants:\n      acme: {share: 3}\n", "login:acme", []Field{day},
			issuers + "    tenants:\n      acme:\n        share: 3\n        tokens_per_day: 7\n"},
		{"an issuer", issuers, "login:*", []Field{day}, issuers + "    tokens_per_day: 7\n"},
	} {
		data, err := edited([]byte(test.file), false, func(lines []string, file *File, root *config.Section) ([]string, error) {
			return Set(lines, file, root, test.grant, test.fields)
		})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, string(data)); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
		if _, err := ParseFile(data, false); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// The file has exactly what was set, and all other grants are as before.
func TestSetOfAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("keys:\n")
		for i := range rapid.IntRange(1, 4).Draw(t, "keys") {
			fields := []string{fmt.Sprintf("hash: sha256:%064d", i+1)}
			for _, f := range []string{"share: 2", "tokens_per_day: 9", "models: [x]", "band: z"} {
				if rapid.Bool().Draw(t, f) {
					fields = append(fields, f)
				}
			}
			if rapid.Bool().Draw(t, "braces") {
				fmt.Fprintf(&b, "  k%d: {%s}\n", i, strings.Join(fields, ", "))
				continue
			}
			fmt.Fprintf(&b, "  k%d:\n    %s\n", i, strings.Join(fields, "\n    "))
			if rapid.Bool().Draw(t, "comment") {
				b.WriteString("    # a comment\n\n")
			}
		}
		file, err := ParseFile([]byte(b.String()), false)
		if err != nil {
			t.Fatal(err)
		}
		g := rapid.SampledFrom(file.Grants()).Draw(t, "grant")
		want := g.words()
		var fields []Field
		none := map[string]string{"share": "1", "band": "default", "models": "all"}
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(Settable()), rapid.ID[string]).Draw(t, "fields") {
			value := rapid.SampledFrom([]string{"", "3", "4"}).Draw(t, name)
			f := Field{Name: name}
			if want[name] = value; value != "" {
				f.Values = []string{value}
			} else if want[name] = none[name]; want[name] == "" {
				want[name] = "none"
			}
			fields = append(fields, f)
		}
		if err := CheckFields(fields); err != nil {
			t.Fatal(err)
		}
		data, err := edited([]byte(b.String()), false, func(lines []string, file *File, root *config.Section) ([]string, error) {
			return Set(lines, file, root, g.Name, fields)
		})
		if err != nil {
			t.Fatalf("%v of\n%s", err, b.String())
		}
		now, err := ParseFile(data, false)
		if err != nil {
			t.Fatalf("%v:\n%s\n->\n%s", err, b.String(), data)
		}
		for i, of := range now.Grants() {
			if of.Name != g.Name {
				if diff := cmp.Diff(file.Grants()[i].words(), of.words()); diff != "" {
					t.Fatalf("%s has changed: %s", of.Name, diff)
				}
			} else if diff := cmp.Diff(want, of.words()); diff != "" {
				t.Fatalf("%s: %s\n%s\n->\n%s", of.Name, diff, b.String(), data)
			}
		}
	})
}

// Many that change one file at the same time lose nothing of each other, and its mode stays.
func TestUpdates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	link := filepath.Join(t.TempDir(), "link.yaml")
	var text strings.Builder
	text.WriteString("keys:\n")
	for i := range 8 {
		fmt.Fprintf(&text, "  k%d:\n    hash: sha256:%064d\n", i, i+1)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	r, err := Open(link)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 5 {
				if _, err := r.Set(fmt.Sprintf("k%d", i), []Field{{"tokens_per_day", []string{fmt.Sprint(100*i + n + 1)}}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i, s := range r.Standings() {
		if want := int64(100*i + 5); s.Limits.TokensPerDay != want || s.Account.Limits() != s.Limits {
			t.Errorf("%s: %+v in the file, %+v in force, want %d", s.Name, s.Limits, s.Account.Limits(), want)
		}
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no link any more: %v", err)
	}
	if info, err = os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if rest, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(rest) != 0 {
		t.Errorf("files are left: %v", rest)
	}

	// Beside a file with so long a name there is no place for another.
	path = filepath.Join(t.TempDir(), strings.Repeat("k", 250))
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = Open(path); err != nil {
		t.Fatal(err)
	}
	_, err = r.Set("k0", []Field{{"share", []string{"2"}}})
	data, unread := os.ReadFile(path)
	if err == nil || unread != nil || string(data) != text.String() || r.Standings()[0].Caller.Share != 1 {
		t.Errorf("a file that cannot be replaced: %v, %v", err, unread)
	}
}

// Bad fields are refused by name, with what they can be.
func TestBadFields(t *testing.T) {
	for _, test := range []struct {
		f    Field
		want string
	}{
		{Field{"tokens_per_dya", []string{"1"}}, "did you mean tokens_per_day?"},
		{Field{"hash", []string{"sha256:00"}}, "hash: there is no such limit"},
		{Field{"tenant", []string{"x"}}, "tenant: there is no such limit"},
		{Field{"tokens_per_day", []string{"-1"}}, "tokens_per_day: want a whole number"},
		{Field{"tokens_per_day", []string{"1.5"}}, "tokens_per_day: want a whole number"},
		{Field{"max_requests", []string{"99999999999999999999"}}, "max_requests: want a whole number"},
		{Field{"share", []string{"0"}}, "share: want a weight from 1 to 1000"},
		{Field{"share", []string{"NaN"}}, "share: want a weight from 1 to 1000"},
		{Field{"band", []string{"a\x00"}}, "band: band: the name"},
		{Field{"models", []string{"\x1b[31m"}}, "models: the name"},
	} {
		if err := CheckFields([]Field{test.f}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.f, err, test.want)
		}
	}
}

// A change between two files is named by grant and field; hashes are not shown.
func TestDiff(t *testing.T) {
	_, one := NewKey()
	_, two := NewKey()
	from, err := ParseFile([]byte("keys:\n  a:\n    hash: "+one.String()+"\n    tokens_per_day: 5\n  b:\n    hash: "+two.String()+"\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	_, three := NewKey()
	to, err := ParseFile([]byte("keys:\n  a:\n    hash: "+three.String()+"\n    share: 2\n    models: [m]\ncertificates:\n  c: {tenant: t}\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Step{
		{Verb: config.CallerRemoved, Name: "b"},
		{Verb: config.CallerChanged, Name: "a", What: "models all -> m, share 1 -> 2, tokens_per_day 5 -> none, another key"},
		{Verb: config.CallerAdded, Name: "certificate:c", What: "tenant t"},
	}
	if diff := cmp.Diff(want, Diff(from, to)); diff != "" {
		t.Error(diff)
	}
	if steps := Diff(to, to); steps != nil {
		t.Errorf("%v", steps)
	}
}
