//go:build interop

// Package tokenizer_test compares weir's tokenizer with the reference library
// over megabytes of text, for the embedded vocabulary and for a vocabulary
// trained here under each grammar that is supported:
//
//	.venv/bin/pip install -r interop/requirements.txt
//	WEIR_PYTHON=$PWD/.venv/bin/python go test -tags interop ./interop/tokenizer/
//
// Nearly all of the time it takes is the reference's. Under -short it takes a fifth
// of the text.
package tokenizer_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// roots are the folders that hold text: Go's, Python's, and Django's, which is
// there for its translations.
func roots(t testing.TB) (goRoot, python3, django string) {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := exec.Command(harness.Python(t), "reference.py", "paths").Output()
	if err != nil {
		t.Fatalf("reference.py paths: %v", err)
	}
	python3, django, _ = strings.Cut(strings.TrimSpace(string(paths)), "\n")
	return strings.TrimSpace(string(out)), python3, django
}

// addedToken is an added token as the reference's constructor takes it.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word,omitempty"`
	LStrip     bool   `json:"lstrip,omitempty"`
	RStrip     bool   `json:"rstrip,omitempty"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special,omitempty"`
}

// object is a JSON object.
type object = map[string]any

// spec states what tokenizer to train.
type spec struct {
	Model string `json:"model"` // BPE or Unigram
	// Train and Serve are the components (normalizer, pre_tokenizer, decoder) to
	// train with and to write.
	Train object `json:"train"`
	Serve object `json:"serve"`
	// Settings are members of the written model.
	Settings object `json:"settings"`
	Size     int    `json:"size"`
	// ByteAlphabet has a token for every byte of ByteLevel's alphabet.
	ByteAlphabet bool `json:"byte_alphabet"`
	// LimitAlphabet is the most single runes that are tokens.
	LimitAlphabet *int         `json:"limit_alphabet"`
	MaxToken      *int         `json:"max_token_length"`
	Special       []string     `json:"special"` // first in the vocabulary
	Added         []addedToken `json:"added"`
	BOS           string       `json:"bos,omitempty"`
	Files         []string     `json:"files"`
}

// train has the reference train a tokenizer and gives its folder.
func train(t testing.TB, s spec) string {
	t.Helper()
	dir := t.TempDir()
	in, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), harness.Python(t), "reference.py", "train", dir)
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("training: %v\n%s", err, out)
	}
	return dir
}

// reference is a running reference.py, as serve or as tiktoken.
type reference struct{ *harness.Peer }

func startReference(t testing.TB, kind, dir string) *reference {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &reference{harness.StartPeer(t, exec.Command(harness.Python(t), "reference.py", kind, abs))}
}

// ask sends one request and gives the count and bytes of the answer, whose
// units are unit bytes.
func (r *reference) ask(t testing.TB, operation byte, body []byte, unit int) []byte {
	t.Helper()
	head := binary.LittleEndian.AppendUint32([]byte{operation}, uint32(len(body)))
	if _, err := r.Write(append(head, body...)); err != nil {
		t.Fatalf("reference: %v", err)
	}
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		t.Fatalf("reference: %v", err)
	}
	answer := make([]byte, unit*int(binary.LittleEndian.Uint32(size[:])))
	if _, err := io.ReadFull(r, answer); err != nil {
		t.Fatalf("reference: %v", err)
	}
	return answer
}

func (r *reference) encode(t testing.TB, text string, addSpecial bool) []uint32 {
	t.Helper()
	operation := byte('e')
	if addSpecial {
		operation = 'E'
	}
	answer := r.ask(t, operation, []byte(text), 4)
	ids := make([]uint32, len(answer)/4)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint32(answer[4*i:])
	}
	return ids
}

func (r *reference) decode(t testing.TB, ids []uint32, skipSpecial bool) string {
	t.Helper()
	operation := byte('d')
	if skipSpecial {
		operation = 'D'
	}
	var body []byte
	for _, id := range ids {
		body = binary.LittleEndian.AppendUint32(body, id)
	}
	return string(r.ask(t, operation, body, 1))
}
