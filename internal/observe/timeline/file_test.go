package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// smallDisk is a disk with room for this many bytes, on which files are made.
type smallDisk struct {
	room  atomic.Int64
	stuck bool // nothing can be taken back
	fail  error
}

func (d *smallDisk) open(path string, mode os.FileMode) (disk, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	f, err := appendTo(path, mode)
	if err != nil {
		return nil, err
	}
	return &onSmallDisk{f, d}, nil
}

type onSmallDisk struct {
	disk
	on *smallDisk
}

// Write writes what there is room for, as a disk does that becomes full.
func (f *onSmallDisk) Write(p []byte) (int, error) {
	n, err := f.disk.Write(p[:min(int64(len(p)), f.on.room.Load())])
	f.on.room.Add(-int64(n))
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *onSmallDisk) Truncate(size int64) error {
	if f.on.stuck {
		return syscall.EPERM
	}
	info, err := f.Stat()
	if err == nil {
		err = f.disk.Truncate(size)
	}
	if err == nil {
		f.on.room.Add(info.Size() - size)
	}
	return err
}

// wholeLines counts a file's lines, and wants it to hold nothing else.
func wholeLines(t *testing.T, path string) uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		t.Errorf("%s ends within a line: %q", filepath.Base(path), data[bytes.LastIndexByte(data, '\n')+1:])
	}
	return uint64(bytes.Count(data, newline))
}

// On a full disk the file has whole lines, as many as are counted as written; what it
// does not have waits for room. The log says so once, and once that it is over.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		path := filepath.Join(t.TempDir(), "t.jsonl")
		d := &smallDisk{}
		d.room.Store(16 << 10)
		r, err := New(Options{File: path, Queue: 256, Log: slog.New(slog.NewTextHandler(&log, nil)), open: d.open})
		if err != nil {
			t.Fatal(err)
		}
		added := uint64(0)
		add := func(n int) {
			for range n {
				r.Add(sample(fmt.Sprint(added)))
				added++
			}
		}
		settle := func(what string, written, dropped uint64) {
			t.Helper()
			time.Sleep(5 * retryInterval)
			synctest.Wait()
			lines := wholeLines(t, path)
			if lines != r.Written() || lines != written || r.Dropped() != dropped {
				t.Errorf("%s: %d lines, %d written, want %d; %d dropped, want %d", what, lines, r.Written(), written, r.Dropped(), dropped)
			}
		}
		perLine := len(Append(nil, sample("00"), r.boot)) + 1
		fit := uint64(16<<10) / uint64(perLine)
		add(10)
		settle("room", 10, 0)
		add(30)
		settle("full", fit, 0)
		d.room.Add(64 << 10)
		settle("room again", 40, 0)
		d.room.Store(0)
		for range 600 { // the file's own 64 KB, and the queue
			add(1)
			synctest.Wait()
		}
		lost := r.Dropped()
		if lost == 0 || lost > 600-256 {
			t.Errorf("%d of 600 dropped while there was no room, want some, and those kept that have their place", lost)
		}
		d.room.Store(4 << 20)
		settle("room once more", added-lost, lost)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if full, again := strings.Count(log.String(), "cannot be written"), strings.Count(log.String(), "written again"); full != 2 || again != 2 || strings.Count(log.String(), "\n") != 4 {
			t.Errorf("said %d times that it is full and %d times that it is written, want 2 and 2:\n%s", full, again, log.String())
		}
	})
}

// Records that cannot be written at the end are counted and reported.
func TestFullDiskAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	d := &smallDisk{}
	d.room.Store(16 << 10)
	r, err := New(Options{File: path, open: d.open})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		r.Add(sample(fmt.Sprint(i)))
	}
	err = r.Close()
	if lines := wholeLines(t, path); lines != r.Written() || lines == 0 || lines+r.Dropped() != 1000 {
		t.Errorf("%d lines, %d written, %d dropped of 1000", lines, r.Written(), r.Dropped())
	}
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), fmt.Sprint(r.Dropped(), " records were not written")) {
		t.Errorf("error %v", err)
	}
}

// After a rename, lines go to the old file until Reopen, and to a new one then. A file
// that cannot be opened leaves the old one in use.
func TestReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "t.jsonl")
		d := &smallDisk{}
		d.room.Store(1 << 20)
		r, err := New(Options{File: path, open: d.open})
		if err != nil {
			t.Fatal(err)
		}
		reopen := func() error {
			had, err := r.Reopen()
			if !had {
				t.Error("there is a file, and Reopen says that there is none")
			}
			return err
		}
		r.Add(sample("0"))
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		r.Add(sample("1"))
		d.fail = fs.ErrPermission
		if err := reopen(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("reopened where that is not allowed: %v", err)
		}
		r.Add(sample("2"))
		d.fail = nil
		if err := reopen(); err != nil {
			t.Fatal(err)
		}
		r.Add(sample("3"))
		if err := reopen(); err != nil { // the same file again
			t.Fatal(err)
		}
		r.Add(sample("4"))
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		old, next := wholeLines(t, path+".1"), wholeLines(t, path)
		if old != 3 || next != 2 || r.Written() != 5 {
			t.Errorf("%d lines in the old file and %d in the new one", old, next)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
		}
		if had, err := r.Reopen(); !had || err == nil {
			t.Errorf("after Close: %t, %v", had, err)
		}
		none, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if had, err := none.Reopen(); had || err != nil {
			t.Errorf("without a file: %t, %v", had, err)
		}
	})
}

// A file is put aside when it is old, if it has anything.
func TestRotationByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "t.jsonl")
		r, err := New(Options{File: path, Rotation: Rotation{Age: time.Minute, Keep: 2}})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			r.Add(sample(id))
			time.Sleep(time.Second)
			r.Add(sample(id + id))
			time.Sleep(3 * time.Minute)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{path: "dd", path + ".1": "cc", path + ".2": "bb"} {
			data, err := os.ReadFile(file)
			if err != nil || bytes.Count(data, newline) != 2 || !bytes.Contains(data, []byte(`"`+want+`"`)) {
				t.Errorf("%s: %s, %v", filepath.Base(file), data, err)
			}
		}
		if _, err := os.Stat(path + ".3"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a third one is kept: %v", err)
		}
		if r.Written() != 8 || r.Dropped() != 0 {
			t.Errorf("%d written, %d dropped", r.Written(), r.Dropped())
		}
	})
}

// A rotation moves the files up to the first free number, and touches no other one. So it costs
// what there is, also for an operator who keeps all files by a large number.
func TestRotationStopsAtTheFirstFreeNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	for _, name := range []string{".1", ".3"} {
		if err := os.WriteFile(path+name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := &smallDisk{}
	f := &file{path: path, open: d.open, rotation: Rotation{Keep: 1000}}
	if err := f.reopen(0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.rotate(info); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{".1": "", ".2": ".1", ".3": ".3"} {
		if data, err := os.ReadFile(path + name); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if names, err := filepath.Glob(path + "*"); err != nil || len(names) != 4 {
		t.Errorf("%v, %v", names, err)
	}
}

// A file that cannot be put aside grows on, which is said once.
func TestRotationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		path := filepath.Join(t.TempDir(), "t.jsonl")
		if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		r, err := New(Options{File: path, Rotation: Rotation{Size: 1 << 10, Keep: 1}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			r.Add(sample(fmt.Sprint(i)))
			time.Sleep(time.Second)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if lines := wholeLines(t, path); lines != 10 || r.Written() != 10 {
			t.Errorf("%d lines, %d written", lines, r.Written())
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "cannot be put aside") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}

// For any behaviour of the disk, the current and the rotated files have the lines that are counted
// as written, in order, and nothing else.
func TestFileHoldsWholeLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "timeline")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "t")
		const most = 100 // lines, and files put aside
		d := &smallDisk{}
		f := &file{path: path, open: d.open, rotation: Rotation{Keep: most}}
		if rapid.Bool().Draw(t, "rotated") {
			f.rotation.Size = rapid.Int64Range(1, 400).Draw(t, "size")
		}
		if err := f.reopen(0o600); err != nil {
			t.Fatal(err)
		}
		var lines, written uint64
		aside, wasStuck := 0, false
		flush := func() {
			n, err := f.flush()
			written += n
			if err != nil && d.room.Load() > 0 && len(f.pending) == 0 {
				t.Fatalf("%v, with nothing left to write", err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range min(rapid.Uint64Range(1, 5).Draw(t, "lines"), most-lines) {
					f.pending = fmt.Appendf(f.pending, "%s\"%d\",%s}\n", lineBegins, lines, strings.Repeat("x", rapid.IntRange(0, 60).Draw(t, "more")))
					lines++
				}
			},
			"flush": func(*rapid.T) { flush() },
			"room":  func(t *rapid.T) { d.room.Add(rapid.Int64Range(0, 500).Draw(t, "bytes")) },
			"stuck": func(t *rapid.T) { d.stuck, wasStuck = !d.stuck, true },
			"reopen": func(t *rapid.T) {
				if flush(); f.sent == 0 { // a line that the disk does not take back stays torn
					_ = f.reopen(0o600)
				}
			},
			"renamed": func(t *rapid.T) {
				if f.rotation.Size == 0 && f.sent == 0 && os.Rename(path, fmt.Sprintf("%s.%d", path, most-aside)) == nil {
					aside++ // the latest has the lowest number, as those of a rotation do
				}
			},
		})
		d.room.Store(1 << 20)
		d.stuck = false
		flush()
		if lines != written || len(f.pending) != 0 {
			t.Fatalf("%d lines, %d written, %d bytes left", lines, written, len(f.pending))
		}
		var all []byte
		for i := most; i >= 0; i-- {
			name := fmt.Sprintf("%s.%d", path, i)
			if i == 0 {
				name = path
			}
			data, err := os.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if size := int64(len(data)); f.rotation.Size > 0 && !wasStuck && size > f.rotation.Size && bytes.Count(data, newline) > 1 {
				t.Fatalf("%s has %d bytes, more than %d", name, size, f.rotation.Size)
			}
			all = append(all, data...)
		}
		got := slices.Collect(strings.Lines(string(all)))
		if uint64(len(got)) != lines {
			t.Fatalf("%d lines in the files, %d added:\n%s", len(got), lines, all)
		}
		for i, line := range got {
			if want := fmt.Sprintf("%s\"%d\",", lineBegins, i); !strings.HasPrefix(line, want) || !strings.HasSuffix(line, "}\n") {
				t.Fatalf("line %d is %q", i, line)
			}
		}
	})
}

// The beginning of a record that a killed process has left is taken back; a file that
// ends within anything else is refused.
func TestFileThatEndsWithinALine(t *testing.T) {
	line := string(Append(nil, sample("a"), "")) + "\n"
	const refused = "refused"
	for text, want := range map[string]string{ // what is left of it
		"":                     "",
		line:                   line,
		line + line[:100]:      line,
		line[:100]:             "",
		line + line[:5]:        line,
		line + "{}\nmore":      refused,
		"no timeline":          refused,
		"root:x:0:0:root\n":    refused,
		line + "{\"requests\"": refused,
	} {
		path := filepath.Join(t.TempDir(), "t.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		r, err := New(Options{File: path})
		switch {
		case want == refused:
			if want = text; err == nil || !strings.Contains(err.Error(), "name another file") {
				t.Errorf("%.120q: error %v", text, err)
			}
		case err != nil:
			t.Errorf("%.120q: %v", text, err)
		default:
			b := sample("b")
			r.Add(b)
			if r.Close() != nil || r.Written() != 1 {
				t.Errorf("%.120q: %d written", text, r.Written())
			}
			want += string(Append(nil, b, r.boot)) + "\n"
		}
		if got, err := os.ReadFile(path); err != nil || len(got) != len(want) || !strings.HasPrefix(string(got), want[:min(len(want), 200)]) {
			t.Errorf("%.120q has become %q, %v, want %q", text, got, err, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, %v; a file that was there keeps its own", info.Mode(), err)
		}
	}
}
