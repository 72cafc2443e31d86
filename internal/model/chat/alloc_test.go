package chat

import (
	"context"
	"testing"
)

// A short conversation allocates for what it says, and not for names that all conversations have
// nor for what the template does not read.
func TestShortConversationAllocates(t *testing.T) {
	tmpl, err := Parse("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{
		Messages:            []byte(`[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hello"}]}]`),
		AddGenerationPrompt: true,
		SpecialTokens:       map[string]string{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
	}
	dst := make([]byte, 0, 4096)
	n := testing.AllocsPerRun(100, func() {
		if _, err := tmpl.Render(context.Background(), dst, in); err != nil {
			t.Fatal(err)
		}
	})
	if n > 27 {
		t.Errorf("%v allocations", n)
	}
}
