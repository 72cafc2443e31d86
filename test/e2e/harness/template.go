package harness

import (
	"io/fs"
	"path/filepath"
	"testing"

	"weir/models"
)

// SimFolder is a folder of the simulated model, whose files edit may change.
func SimFolder(t testing.TB, edit func(file, text string) string) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "chat_template.jinja"} {
		data, err := fs.ReadFile(models.Sim(), name)
		if err != nil {
			t.Fatal(err)
		}
		WriteFile(t, filepath.Join(folder, name), edit(name, string(data)))
	}
	return folder
}

// SlowTemplate is a folder of the simulated model whose template takes long for a chat that
// ends with a message that begins with SLOW.
func SlowTemplate(t testing.TB) string {
	t.Helper()
	return SimFolder(t, func(file, text string) string {
		if file == "chat_template.jinja" {
			text = "{%- if messages[-1].content is string and messages[-1].content.startswith('SLOW') %}{%- for i in range(1500) %}{%- for j in range(1500) %}{%- set x = i * j %}{%- endfor %}{%- endfor %}{%- endif %}" + text
		}
		return text
	})
}
