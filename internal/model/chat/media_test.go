package chat

import (
	"context"
	"errors"
	"strings"
	"testing"

	"weir/internal/infer"
)

// A template that puts a placeholder in the place of each part renders what it
// renders anyway, which the goldens hold; one that cannot place them is refused,
// and never passes over them.
func TestMedia(t *testing.T) {
	for name, says := range map[string]string{
		"qwen2-vl": "", "qwen3-vl": "", "llama4": "", "gemma": "", "mistral": "", "kimi-k2": "",
		"llama3.1":       "it prints the content of messages of role user as it is",
		"qwen3":          "it passes over such parts in messages of role user",
		"glm-4.5":        "it passes over such parts in messages of role user",
		"generation-rag": "it passes over such parts in messages of role user",
		"deepseek-v3":    "it may take text only as a message's content",
		"gpt-oss":        "it may take text only as a message's content",
	} {
		tmpl := readTemplate(t, name)
		in := readRequest(t, "media")
		want, wantErr := tmpl.Render(context.Background(), nil, in)
		in.Media = true
		got, err := tmpl.Render(context.Background(), []byte("before "), in)
		if says == "" {
			if err != nil || wantErr != nil || string(got) != "before "+string(want) {
				t.Errorf("%s: %v, %v: %q, want %q", name, err, wantErr, got, want)
			}
			continue
		}
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != infer.CodeInvalid || e.Param != "messages" || !strings.Contains(e.Message, says) || string(got) != "before " {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}

// Each kind and each role counts by itself.
func TestMediaByRole(t *testing.T) {
	const user = `{{ '<image>' if p.type == 'image' else p.text }}`
	for _, test := range []struct{ source, messages, says string }{
		{`{% for m in messages %}{% for p in m.content %}` + user + `{% endfor %}{% endfor %}`, `[{"role":"user","content":[{"type":"image"},{"type":"audio"}]}]`, "audio input"},
		{`{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}` + user + `{% endfor %}{% endif %}{% endfor %}`,
			`[{"role":"user","content":[{"type":"image"}]},{"role":"tool","content":[{"type":"image"}]}]`, "in messages of role tool"},
		{`{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ raise_exception('only images') }}{% endif %}{% endfor %}{% endfor %}`,
			`[{"role":"user","content":[{"type":"image"}]}]`, ""},
		{`{% for m in messages %}{% for p in m.content %}{% if p.type != 'text' %}[MEDIA]{% endif %}{% endfor %}{% endfor %}`,
			`[{"role":"user","content":[{"type":"video"},{"type":"image"}]}]`, ""},
		{`{% for m in messages %}{{ m.content | tojson }}{% endfor %}`, `[{"role":"user","content":[{"type":"text","text":"{\"type\": \"image\"}"},{"type":"image"}]}]`, "prints the content"},
		{`{% for m in messages %}{% for p in m.content %}` + user + `{% endfor %}{% endfor %}`, `[{"role":"user","content":[{"type":"text","text":"{'type': 'image'}"},{"type":"image"}]}]`, ""},
	} {
		tmpl, err := Parse(test.source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = tmpl.Render(context.Background(), nil, &Input{Messages: []byte(test.messages), Media: true})
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s with %s: %v, want %q", test.source, test.messages, err, test.says)
		}
	}
}
