package callid

import (
	"fmt"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// forms are the ids that each form takes.
var forms = map[Form]func(tool string) *regexp.Regexp{
	Any:   func(string) *regexp.Regexp { return regexp.MustCompile(`.`) },
	Typed: func(tool string) *regexp.Regexp { return regexp.MustCompile(`^functions\.` + tool + `:[0-9]+$`) },
	Short: func(string) *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z]{9}$`) },
}

// Calls of any ids get ids of the form, each its own, and each result has that of its call. Ids of
// the form stay, and a conversation that goes on keeps its ids.
func TestHistory(t *testing.T) {
	ids := []string{"call_%d", "functions.now:%d", "functions.f:%d", "toolu_01%d", "%d", "abcdefgh%d", `q"\u00e9%d`}
	type call struct{ id, tool string }
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) call {
			return call{fmt.Sprintf(rapid.SampledFrom(ids).Draw(t, "id"), rapid.IntRange(0, 9).Draw(t, "n")), rapid.SampledFrom([]string{"now", "f"}).Draw(t, "tool")}
		}), 0, 12).Draw(t, "calls")
		for form, want := range forms {
			h, again := History{Form: form}, History{Form: form}
			kept := map[string]int{}
			for _, c := range given {
				h.Keep(c.id, c.tool)
				again.Keep(c.id, c.tool)
				if form != Any && want(c.tool).MatchString(c.id) {
					kept[c.id]++
				}
			}
			seen := map[string]int{}
			for i, c := range given {
				got := h.Call(c.id, c.tool)
				if seen[got]++; !want(c.tool).MatchString(got) || form != Any && seen[got] > max(1, kept[got]) {
					t.Fatalf("%v: call %d, %q of %s, has %q", form, i, c.id, c.tool, got)
				}
				if want(c.tool).MatchString(c.id) && got != c.id {
					t.Fatalf("%v: %q became %q", form, c.id, got)
				}
				if result := h.Result(c.id); result != got {
					t.Fatalf("%v: the result of %q has %q, and its call %q", form, c.id, result, got)
				}
				if same := again.Call(c.id, c.tool); same != got {
					t.Fatalf("%v: %q became %q and %q", form, c.id, got, same)
				}
			}
			if h.Calls != len(given) {
				t.Fatalf("%v: %d calls, want %d", form, h.Calls, len(given))
			}
		}
	})
}

// A template that asks for short ids is given such, of a result without a call too.
func TestLoneResult(t *testing.T) {
	h := History{Form: Short}
	if id := h.Result("toolu_1"); !forms[Short]("").MatchString(id) || id == (&History{Form: Short}).Result("toolu_2") {
		t.Errorf("%q", id)
	}
	if id := (&History{Form: Typed}).Result("toolu_1"); id != "toolu_1" {
		t.Errorf("%q", id)
	}
}

// An id that weir makes is one that the template takes.
func TestNew(t *testing.T) {
	if id := Any.New("now", 3); id != "" {
		t.Errorf("%q", id)
	}
	for _, f := range []Form{Typed, Short} {
		if id := f.New("now", 3); !forms[f]("now").MatchString(id) {
			t.Errorf("%v: %q", f, id)
		}
	}
}
