//go:build interop

package tokenizer_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/model/tokenizer"
)

// TestTiktoken compares vocabularies in tiktoken's form with tiktoken, for each
// kind of folder that is known: the ranks are a vocabulary trained here.
func TestTiktoken(t *testing.T) {
	c := theCorpus(t)
	for name, k := range map[string]struct {
		pattern, file string
		beside        map[string]string // %d is the number of ranks, and so on
		special       map[string]int    // above the ranks
		nfc           bool
	}{
		"llama3": {patternOf(t, "llama3"), "tokenizer.model", map[string]string{"params.json": `{"dim": 4096, "vocab_size": %[2]d}`},
			map[string]int{"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6, "<|reserved_special_token_4|>": 8, "<|eot_id|>": 9, "<|reserved_special_token_250|>": 255}, false},
		"llama3.1": {patternOf(t, "llama3"), "tokenizer.model", map[string]string{"params.json": `{"use_scaled_rope": true, "vocab_size": %[2]d}`},
			map[string]int{"<|begin_of_text|>": 0, "<|eom_id|>": 8, "<|eot_id|>": 9, "<|python_tag|>": 10, "<|reserved_special_token_2|>": 12, "<|reserved_special_token_245|>": 255}, false},
		"qwen": {patternOf(t, "qwen2"), "qwen.tiktoken", map[string]string{"tokenizer_config.json": `{"tokenizer_class": "QWenTokenizer"}`},
			map[string]int{"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|extra_0|>": 3, "<|extra_204|>": 207}, true},
		"kimi": {patternOf(t, "kimi"), "tiktoken.model", map[string]string{"tokenizer_config.json": `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"%[1]d": {"content": "[BOS]"}, "%[3]d": {"content": "<|im_end|>"}}}`},
			map[string]int{"[BOS]": 0, "<|im_end|>": 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ranks, lines := ranksOf(t, trained(t, "bytes"))
			dir := t.TempDir()
			write := func(file string, data []byte) {
				if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(k.file, lines)
			for file, text := range k.beside {
				if strings.Contains(text, "%") {
					text = fmt.Sprintf(text+"%[4]s", ranks, ranks+256, ranks+2, "")
				}
				write(file, []byte(text))
			}
			m, err := tokenizer.Load(os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			special := map[string]uint32{}
			for _, token := range m.Tokenizer.AddedTokens() {
				special[token.Content] = token.ID
			}
			for content, above := range k.special {
				if special[content] != uint32(ranks+above) {
					t.Errorf("%s has id %d, want %d", content, special[content], ranks+above)
				}
			}
			spec, err := json.Marshal(object{"pattern": k.pattern, "file": k.file, "special": special, "nfc": k.nfc})
			if err != nil {
				t.Fatal(err)
			}
			write("spec.json", spec)
			compareWith(t, m.Tokenizer, startReference(t, "tiktoken", dir), c.texts)
		})
	}
}

// ranksOf writes a trained byte-level vocabulary in tiktoken's form.
func ranksOf(t *testing.T, dir string) (ranks int, lines []byte) {
	t.Helper()
	m, err := tokenizer.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for id := range uint32(m.Tokenizer.Size()) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString(m.Tokenizer.TokenBytes(id)), id)
	}
	return m.Tokenizer.Size(), b.Bytes()
}
