package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A key that could not be printed is known to nobody, so it does not stay in the file.
func TestKeyThatCannotBePrinted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if code, _, stderr := run(t, "keys", "add", "alice", "--keys", path); code != 0 {
		t.Fatal(stderr)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := Main([]string{"keys", "add", "bob", "--keys", path}, strings.NewReader(""), full{}, &stderr); code != 1 || !strings.Contains(stderr.String(), "no space left") {
		t.Errorf("exit status %d: %s", code, &stderr)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file became\n%s", after)
	}
}
