package outputparse

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// wanted are the ids that each template that is particular takes.
var wanted = map[string]func(tool string) *regexp.Regexp{
	"kimi-k2": func(tool string) *regexp.Regexp {
		return regexp.MustCompile(`^functions\.` + regexp.QuoteMeta(tool) + `:[0-9]+$`)
	},
	"mistral": func(string) *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z]{9}$`) },
}

// However ids look that come back in a conversation, a template that is particular sees its own,
// each call another, and each result that of its call. Nothing else changes.
func TestHistoryIDs(t *testing.T) {
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		Function function `json:"function"`
		ID       string   `json:"id"`
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
		Calls   []call `json:"tool_calls,omitempty"`
		Call    string `json:"tool_call_id,omitempty"`
	}
	ids := []string{"call_%d", "functions.now:%d", "functions.f:%d", "toolu_01%d", "%d", "abcdefgh%d", `q"\u00e9%d`}
	rapid.Check(t, func(t *rapid.T) {
		var given []message
		seen := map[string]bool{}
		for range rapid.IntRange(0, 4).Draw(t, "turns") {
			given = append(given, message{Role: "user", Content: `{"tool_calls": [{"id": "call_1"}]}`})
			turn := message{Role: "assistant"}
			var results []message
			for range rapid.IntRange(0, 3).Draw(t, "calls") {
				id := fmt.Sprintf(rapid.SampledFrom(ids).Draw(t, "id"), rapid.IntRange(0, 9).Draw(t, "n"))
				if seen[id] {
					continue
				}
				seen[id] = true
				turn.Calls = append(turn.Calls, call{function{rapid.SampledFrom([]string{"now", "f"}).Draw(t, "tool"), `{"id": "call_1"}`}, id})
				results = append(results, message{Role: "tool", Content: "x", Call: id})
			}
			given = append(append(given, turn), results...)
		}
		raw, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		for _, tools := range ToolNames() {
			f := Format{tools: allTools[0]}
			for _, s := range allTools {
				if s.name == tools {
					f.tools = s
				}
			}
			out, calls := f.HistoryIDs(raw)
			want := wanted[tools]
			if want == nil {
				if string(out) != string(raw) {
					t.Fatalf("%s: %s became %s", tools, raw, out)
				}
				continue
			}
			var got []message
			if err := json.Unmarshal(out, &got); err != nil || len(got) != len(given) || calls != len(seen) {
				t.Fatalf("%s: %v, %d calls: %s", tools, err, calls, out)
			}
			now, unique := map[string]string{}, map[string]bool{}
			for i := range got {
				for j, c := range got[i].Calls {
					own := &given[i].Calls[j]
					if !want(c.Function.Name).MatchString(c.ID) || unique[c.ID] {
						t.Fatalf("%s: id %q in %s", tools, c.ID, out)
					}
					if want(c.Function.Name).MatchString(own.ID) && tools == "mistral" && own.ID != c.ID {
						t.Fatalf("%s: %q became %q", tools, own.ID, c.ID)
					}
					unique[c.ID], now[own.ID] = true, c.ID
					got[i].Calls[j].ID = own.ID
				}
				if given[i].Call != "" && got[i].Call != now[given[i].Call] {
					t.Fatalf("%s: a result of %q, whose call is %q: %s", tools, got[i].Call, now[given[i].Call], out)
				}
				got[i].Call = given[i].Call
			}
			if back, _ := json.Marshal(got); string(back) != string(raw) {
				t.Fatalf("%s: more than ids has changed: %s", tools, out)
			}
		}
	})
}

// Anything but a conversation is left as it is.
func TestHistoryIDsOfNone(t *testing.T) {
	f, _ := Named("kimi-k2", "")
	for _, raw := range []string{``, `[{"tool_calls": [`, `{"tool_calls": 1}`, `[{"tool_calls": {"id": 1}}, {"tool_call_id": null}, 7]`, `[{"tool_calls": [{"id": 5, "function": "x"}]}]`} {
		if out, _ := f.HistoryIDs([]byte(raw)); string(out) != raw {
			t.Errorf("%s became %s", raw, out)
		}
	}
}

// An id that weir makes is one that the template takes.
func TestCallID(t *testing.T) {
	for _, s := range allTools {
		f := Format{tools: s}
		id := f.CallID("now", 3)
		switch want := wanted[s.name]; {
		case want == nil && id != "":
			t.Errorf("%s: %q", s.name, id)
		case want != nil && !want("now").MatchString(id):
			t.Errorf("%s: %q", s.name, id)
		}
	}
}
