package prepare

import (
	"errors"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/chat"
	"weir/internal/model/outputparse"
)

// How much a model is to reason goes to the variable that its template has.
func TestTemplateKwargs(t *testing.T) {
	think, _ := outputparse.Named("hermes", "think")
	harmony, _ := outputparse.Named("harmony", "harmony")
	for _, test := range []struct {
		source        string
		format        outputparse.Format
		effort, given string
		want          string // or the words of the refusal, after an exclamation mark
	}{
		{"{{ reasoning_effort }}", think, "", `{"a":1}`, `{"a":1}`},
		{"{{ reasoning_effort }}", think, "low", "", `{"reasoning_effort":"low"}`},
		{"{{ reasoning_effort }}", think, "low", ` { }`, `{"reasoning_effort":"low"}`},
		{"{{ reasoning_effort }}{{ enable_thinking }}", think, "none", `{ "a":1}`, `{"reasoning_effort":"none", "a":1}`},
		{"{% if enable_thinking %}{% endif %}", think, "none", "", `{"enable_thinking":false}`},
		{"{% if enable_thinking %}{% endif %}", think, "high", "", `{"enable_thinking":true}`},
		{"{% if thinking %}{% endif %}", think, "high", "", `{"thinking":true}`},
		{"{% if message.thinking %}{% endif %}", think, "high", "", "!nothing by which"},
		{"{{ my_reasoning_effort }}", think, "high", "", "!nothing by which"},
		{"{{ reasoning_effort }}", harmony, "high", "", `{"reasoning_effort":"high"}`},
		{"{{ reasoning_effort }}", harmony, "minimal", "", "!low, medium and high"},
		{"{{ reasoning_effort }}", think, "low", `{"a":1,"reasoning_effort":"high"}`, "!give one of them"},
	} {
		set, err := chat.ParseSet([]chat.Named{{Name: "default", Source: test.source}}, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		req := &dialect.Request{Effort: test.effort, Fields: &dialect.FieldNames{Effort: "reasoning.effort"}}
		if test.given != "" {
			req.ChatTemplateKwargs = []byte(test.given)
		}
		p := &preparing{Prepared: &Prepared{Request: req, Folder: &model.Folder{Templates: set, Format: test.format}}, to: Destination{Model: &route.Model{Name: "m"}}}
		got, err := p.templateKwargs()
		if words, refused := strings.CutPrefix(test.want, "!"); refused {
			var e *infer.Error
			if !errors.As(err, &e) || e.Param != "reasoning.effort" || !strings.Contains(e.Message, words) {
				t.Errorf("%s, %q: %v", test.source, test.effort, err)
			}
		} else if err != nil || string(got) != test.want {
			t.Errorf("%s, %q: %s, %v; want %s", test.source, test.effort, got, err, test.want)
		}
	}
}

// An engine is told that reasoning comes before what the answer must match, where the
// prompt has begun it. A call that must come is all of its answer.
func TestReasoningBeforeAGuide(t *testing.T) {
	for _, c := range []struct {
		prompt string
		forced bool
		want   infer.Reasoning
	}{
		{"<|assistant|><think>\n", false, infer.OpenReasoning}, {"<|assistant|>", false, infer.NoReasoning}, {"<|assistant|><think>\n", true, infer.NoReasoning},
	} {
		q := &Prepared{Request: &dialect.Request{Guide: &infer.Guide{}, ForcedAny: c.forced, Tools: []byte(`[]`)}, Folder: simFolder(t)}
		q.expect([]byte(c.prompt))
		if got := q.Submission(0, &route.Target{Engine: &route.Engine{Facts: engine.Facts{Carries: infer.CarriesAll}}, Model: "m"}, "id").Guide; got.Before() != c.want || got.Whole != c.forced {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
