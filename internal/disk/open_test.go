package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Only regular files are opened, also by symbolic links, and at once; what may be read once may be a
// pipe. The error names the file and what it is, or the most that is read.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("text"), 0o600), os.Symlink("file", at("link")), os.Symlink("link", at("link of a link")),
		os.Symlink("loop", at("loop")), os.Mkdir(at("folder"), 0o700), syscall.Mkfifo(at("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path       string
		most       int64
		text, once string // what is read, or else what the error says
	}{
		{at("file"), 4, "text", "text"},
		{at("link of a link"), 4, "text", "text"},
		{at("file"), 3, "longer than 3 bytes", "longer than 3 bytes"},
		{at("folder"), 9, "a folder", "a folder"},
		{at("fifo"), 9, "a pipe (FIFO)", ""},
		{"/dev/zero", 9, "a device", "a device"},
		{at("loop"), 9, "too many levels", "too many levels"},
		{at("none"), 9, "no such file", "no such file"},
	} {
		for want, read := range map[string]func(string, int64) ([]byte, error){test.text: Read, test.once: ReadOnce} {
			data, err := read(test.path, test.most)
			if err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), test.path)) || err == nil && string(data) != want {
				t.Errorf("%s of at most %d bytes: %q, %v, want %q", test.path, test.most, data, err, want)
			}
		}
	}
	if _, err := fs.ReadFile(Folder(dir), "fifo"); err == nil || !strings.Contains(err.Error(), "a pipe (FIFO)") {
		t.Errorf("a pipe in a folder: %v", err)
	}
	if data, err := fs.ReadFile(Folder(dir), "link"); err != nil || string(data) != "text" {
		t.Errorf("a link in a folder: %q, %v", data, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.WriteString(w, "piped"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if runtime.GOOS == "linux" {
		if data, err := ReadOnce(filepath.Join("/dev/fd", strconv.Itoa(int(r.Fd()))), 9); err != nil || string(data) != "piped" {
			t.Errorf("a pipe that is open: %q, %v", data, err)
		}
	}
}

// Nothing without an end is read beyond the bound.
func TestReadAllBound(t *testing.T) {
	endless, err := os.Open("/dev/zero")
	if err != nil {
		t.Skip(err)
	}
	defer endless.Close()
	if _, err := ReadAll(endless, "standard input", 0, 1<<20); err == nil || !strings.Contains(err.Error(), "standard input: it is longer than 1 MiB") {
		t.Errorf("%v", err)
	}
}
