package disk

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for i, text := range []string{"first, and longer", "second", "third"} {
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		mode := fs.FileMode(0o600)
		if i > 1 {
			mode = 0o640
		}
		if data, _ := os.ReadFile(path); string(data) != text || info.Mode().Perm() != mode {
			t.Errorf("the file has %q and mode %v, want %q and %v", data, info.Mode().Perm(), text, mode)
		}
		if i > 0 {
			if err := os.Chmod(path, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the folder has %v, want the file alone", entries)
	}
}

// A folder cannot be replaced by a file: the error leaves what was there, and nothing beside it.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(path, "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("x")); err == nil {
		t.Fatal("a folder was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 || !entries[0].IsDir() {
		t.Errorf("the folder has %v, want what was there", entries)
	}
}
