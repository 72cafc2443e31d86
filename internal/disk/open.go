package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Open opens a file that an operator has named. It refuses everything but regular files, such as
// devices, which may have no end, and it never waits, as the opening of a FIFO may.
func Open(path string) (*os.File, error) {
	return open(path, func(m fs.FileMode) bool { return m.IsRegular() })
}

// OpenOnce is Open for a file that is read once, from its beginning: it may be a pipe too, such as
// that of a shell's <(COMMAND).
func OpenOnce(path string) (*os.File, error) {
	return open(path, func(m fs.FileMode) bool { return m.IsRegular() || m&fs.ModeNamedPipe != 0 })
}

func open(path string, may func(fs.FileMode) bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !may(info.Mode()) {
		err = &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("it is %s, and not a regular file", kindOf(info.Mode()))}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe (FIFO)"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "of another kind"
}

// ErrChanged is the error of a file that was written while it was read.
var ErrChanged = errors.New("it was changed while it was read")

// Read reads a file of at most so many bytes. It fails if the file is written meanwhile.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := ReadAll(f, path, before.Size(), most)
	if err != nil {
		return nil, err
	}
	if after, err := f.Stat(); err != nil || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.Join(err, ErrChanged)}
	}
	return data, nil
}

// ReadOnce reads a file that may be a pipe, of at most so many bytes.
func ReadOnce(path string, most int64) ([]byte, error) {
	f, err := OpenOnce(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, path, 0, most)
}

// ReadAll reads what r has, at most so many bytes. The name stands for it in errors, and about how
// many bytes there are saves copies.
func ReadAll(r io.Reader, name string, about, most int64) ([]byte, error) {
	tooLong := &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("it is longer than %s, the most that is read of such a file", size(most))}
	if about > most {
		return nil, tooLong
	}
	var b bytes.Buffer
	b.Grow(int(about) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(r, most+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > most {
		return nil, tooLong
	}
	return b.Bytes(), nil
}

// size writes a number of bytes.
func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Folder is a folder that an operator has named, whose files are opened as by Open.
type Folder string

// Open implements fs.FS.
func (d Folder) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return open(filepath.Join(string(d), filepath.FromSlash(name)), func(m fs.FileMode) bool { return m.IsRegular() || m.IsDir() })
}
