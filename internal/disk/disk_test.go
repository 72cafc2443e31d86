package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// A version of a file differs after it was written, and after it was replaced by one of the same
// size and time.
func TestVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	at := time.Unix(1000, 0)
	version := func() Version {
		t.Helper()
		v, err := VersionOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	write := func(to, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(to, []byte(text), 0o600), os.Chtimes(to, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if v := version(); v != (Version{}) {
		t.Errorf("a missing file has %+v", v)
	}
	write(path, "one")
	first := version()
	if first == (Version{}) || first.Size != 3 || first != version() {
		t.Errorf("got %+v, then %+v", first, version())
	}
	write(path, "longer")
	if version() == first {
		t.Error("the same version after a write")
	}
	time.Sleep(2 * tick) // the file system's clock goes on
	write(path, "one")
	if version() == first {
		t.Error("the same version after a write of the same size and time")
	}
	write(path+".new", "two")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if version() == first {
		t.Error("the same version after a replacement of the same size and time")
	}
	if _, err := VersionOf(filepath.Join(path, "below")); err == nil {
		t.Error("no error below a file")
	}
}
