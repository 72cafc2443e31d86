package timeline

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Rotation defines when a timeline's file is rotated. The file becomes FILE.1, the one
// before it FILE.2, and so on. The zero value does not rotate.
type Rotation struct {
	Size int64         // the most bytes of a file, except for a single longer line; 0 is no limit
	Age  time.Duration // from the file's opening by this process; 0 is no limit
	Keep int           // files put aside that are kept; 0 means 5
}

// file appends lines to a file so that the file contains only whole lines even if the disk
// fails, and counts the lines that are in the file rather than those handed over.
//
// Common libraries for rotated files pass the bytes on and leave a torn line when a disk is
// full. They could not report which lines are in the file.
//
// A file has one writer. Its methods are called by one goroutine.
type file struct {
	path     string
	rotation Rotation
	open     func(path string, mode os.FileMode) (disk, error)

	disk    disk
	opened  time.Time
	pending []byte // whole lines that are not in the file
	sent    int    // bytes of the first of them that are, because the disk did not take them back
	stuck   error  // why the file could not be put aside when it should have been
}

// disk is the part of an open file that file needs.
type disk interface {
	io.WriteCloser
	Truncate(size int64) error
	Stat() (os.FileInfo, error)
}

// appendTo opens a file to append to.
func appendTo(path string, mode os.FileMode) (disk, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode)
	if err != nil {
		return nil, err
	}
	if err := mendEnd(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lineBegins is how a record begins.
const lineBegins = `{"request_id":`

// mendEnd removes an incomplete record from a file's end, which a killed process has left
// there. A file that begins otherwise than with a record, or has any other incomplete end, does
// not belong to weir.
func mendEnd(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	begin := make([]byte, min(info.Size(), int64(len(lineBegins))))
	if _, err := r.ReadAt(begin, 0); err != nil {
		return err
	}
	if string(begin) != lineBegins[:len(begin)] {
		return fmt.Errorf("%s is no file of records, because it does not begin with one; name another file", path)
	}
	const most = 16 << 20 // a record is some kilobytes
	tail := make([]byte, min(info.Size(), most))
	if _, err := r.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return err
	}
	tail = tail[bytes.LastIndexByte(tail, '\n')+1:]
	if n := min(len(tail), len(lineBegins)); string(tail[:n]) != lineBegins[:n] {
		return fmt.Errorf("%s is no file of records, because its last line has no end; name another file", path)
	}
	if len(tail) == 0 {
		return nil
	}
	return f.Truncate(info.Size() - int64(len(tail)))
}

// full reports that no more lines should be added before a flush.
func (f *file) full() bool { return len(f.pending) >= 64<<10 }

// waiting is the number of lines that are not in the file.
func (f *file) waiting() uint64 { return uint64(bytes.Count(f.pending, newline)) }

var newline = []byte{'\n'}

// flush writes the pending lines and returns how many lines were added to the file.
// Unwritten lines stay pending. Lines may have been written even if it returns an error.
func (f *file) flush() (lines uint64, err error) {
	for len(f.pending) > 0 {
		n, err := f.flushOnce()
		lines += n
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// flushOnce writes as many lines as one file may hold.
func (f *file) flushOnce() (lines uint64, err error) {
	info, err := f.disk.Stat()
	if err != nil {
		return 0, err
	}
	chunk := f.fitting(info)
	if chunk == 0 {
		if f.stuck = f.rotate(info); f.stuck == nil {
			return 0, nil
		}
		chunk = len(f.pending)
	}
	n, err := f.disk.Write(f.pending[f.sent:chunk])
	has := f.sent + n
	whole := bytes.LastIndexByte(f.pending[:has], '\n') + 1
	lines = uint64(bytes.Count(f.pending[:whole], newline))
	if torn := has - whole; torn > 0 && f.takeBack(info.Size()+int64(n), torn) {
		has = whole
	}
	f.sent = has - whole
	f.pending = append(f.pending[:0], f.pending[whole:]...)
	return lines, err
}

// fitting is how many pending bytes the file may take: whole lines, and at least one
// where it has none; 0 where it is to be put aside first.
func (f *file) fitting(info os.FileInfo) int {
	if !info.Mode().IsRegular() {
		return len(f.pending)
	}
	if f.sent > 0 {
		return bytes.IndexByte(f.pending, '\n') + 1
	}
	if f.rotation.Age > 0 && info.Size() > 0 && time.Since(f.opened) >= f.rotation.Age {
		return 0
	}
	room := f.rotation.Size - info.Size()
	if f.rotation.Size <= 0 || int64(len(f.pending)) <= room {
		return len(f.pending)
	}
	chunk := bytes.LastIndexByte(f.pending[:max(room, 0)], '\n') + 1
	if chunk == 0 && info.Size() == 0 {
		chunk = bytes.IndexByte(f.pending, '\n') + 1
	}
	return chunk
}

// takeBack removes an incomplete line from the end of a file of this size. It does nothing
// if the file has another length, because then another process writes to it.
func (f *file) takeBack(size int64, torn int) bool {
	info, err := f.disk.Stat()
	return err == nil && info.Mode().IsRegular() && info.Size() == size && f.disk.Truncate(size-int64(torn)) == nil
}

// rotate renames the file and begins a new one. If that fails, the old one is still written
// to. A file that another process has already renamed stays where it is.
func (f *file) rotate(info os.FileInfo) error {
	if at, err := os.Stat(f.path); err == nil && os.SameFile(at, info) {
		// The files up to the first free number move. An operator who keeps all files gives a
		// large number, so a rotation must not try each.
		most, free := cmp.Or(f.rotation.Keep, 5), 1
		for ; free < most; free++ {
			if _, err := os.Lstat(f.aside(free)); errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		for i := free; i > 0; i-- {
			if err := os.Rename(f.aside(i-1), f.aside(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return f.reopen(info.Mode().Perm())
}

// aside returns the name of a file that was renamed i rotations ago; 0 is the file itself.
func (f *file) aside(i int) string {
	if i == 0 {
		return f.path
	}
	return fmt.Sprintf("%s.%d", f.path, i)
}

// reopen goes on in the file that has the path now, or in a new one of this mode. If it
// cannot be opened, the old one is still written to.
func (f *file) reopen(mode os.FileMode) error {
	next, err := f.open(f.path, mode)
	if err != nil {
		return err
	}
	if f.disk != nil {
		err = f.disk.Close()
	}
	f.disk, f.opened, f.sent = next, time.Now(), 0
	return err
}
