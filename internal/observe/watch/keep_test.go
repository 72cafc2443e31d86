package watch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newProfiles keeps them in a folder of the test's; the flight recorder is the process's,
// so tests take turns.
func newProfiles(t *testing.T, o ProfileOptions) (*Profiles, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "profiles")
	}
	o.CPU = time.Millisecond
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	p, err := NewProfiles(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, &log
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

// A capture keeps a trace and a CPU profile, for their owner alone, and an hour has a
// number of them.
func TestCapture(t *testing.T) {
	p, log := newProfiles(t, ProfileOptions{PerHour: 2})
	for range 3 {
		p.Capture(t.Context(), TriggerStall)
		time.Sleep(2 * time.Millisecond) // names have milliseconds
	}
	all := p.List()
	if len(all) != 4 || all[0].Time.Before(all[3].Time) || !strings.Contains(log.String(), "--profiles-per-hour") {
		t.Fatalf("%+v\n%s", all, log)
	}
	for _, f := range all {
		info, err := os.Stat(filepath.Join(p.o.Dir, f.Name))
		if err != nil || info.Mode().Perm() != 0o600 || f.Bytes == 0 || f.Trigger != "stall" {
			t.Errorf("%+v: %v, %v", f, info, err)
		}
		file, err := p.Open(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 16)
		_, err = io.ReadFull(file, head)
		file.Close()
		begins := "\x1f\x8b" // gzip
		if f.Kind == "trace" {
			begins = "go 1."
		}
		if err != nil || !strings.HasPrefix(string(head), begins) {
			t.Errorf("%s begins with %q, %v", f.Name, head, err)
		}
	}
	if info, err := os.Stat(p.o.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info, err)
	}
	now := time.Now()
	if p.allowed(TriggerStall, now) || !p.allowed(TriggerStall, now.Add(time.Hour)) {
		t.Error("an hour does not pass")
	}
	if !p.allowed(TriggerBacklog, now) || !p.allowed(TriggerOutput, now) {
		t.Error("stalls have spent the captures of other triggers")
	}
}

// Only one caller at a time takes a profile.
func TestOneAtATime(t *testing.T) {
	p, log := newProfiles(t, ProfileOptions{})
	if _, ok := p.o.Turn.Take("/debug/pprof/"); !ok {
		t.Fatal("the turn is taken")
	}
	p.Capture(t.Context(), TriggerCPU)
	if all := p.List(); len(all) != 0 || !strings.Contains(log.String(), "by=/debug/pprof/") || p.takenLastHour() != 0 {
		t.Errorf("%v\n%s", all, log)
	}
	p.o.Turn.Give()
	p.Capture(t.Context(), TriggerCPU)
	if holder := p.o.Turn.Holder(); len(p.List()) != 2 || holder != "" {
		t.Errorf("%v, and the turn has %q", p.List(), holder)
	}
}

// A CPU profile under way ends with the process, and is whole.
func TestCaptureEnds(t *testing.T) {
	p, _ := newProfiles(t, ProfileOptions{})
	p.o.CPU = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Capture(ctx, TriggerQueue)
	if all := p.List(); len(all) != 2 {
		t.Errorf("%v", all)
	}
}

// full is a disk that is full after some bytes.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if len(b) > f.left {
		n := f.left
		f.left = 0
		return n, &os.PathError{Op: "write", Path: "profile", Err: syscall.ENOSPC}
	}
	f.left -= len(b)
	return len(b), nil
}

func (*full) Close() error { return nil }

// A full disk, whether from the start or in the middle, is reported once for each file, and no part
// of the file is left.
func TestFullDisk(t *testing.T) {
	for _, left := range []int{-1, 0, 100} {
		p, log := newProfiles(t, ProfileOptions{create: func(string) (io.WriteCloser, error) {
			if left < 0 {
				return nil, &os.PathError{Op: "open", Path: "profile", Err: syscall.ENOSPC}
			}
			return &full{left}, nil
		}})
		p.Capture(t.Context(), TriggerStall)
		if names := files(t, p.o.Dir); len(names) != 0 || p.failed != 2 || p.kept != 0 || strings.Count(log.String(), "no space left on device") != 2 {
			t.Errorf("with %d bytes: left %v, %d failed, %d kept\n%s", left, names, p.failed, p.kept, log)
		}
		p.Close()
	}
}

// The folder is bounded in files and bytes, and files that are not weir's are left alone.
func TestEvict(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"20260101T000000.000Z-stall.trace", "20260101T000000.000Z-stall.pprof", "20260102T000000.000Z-cpu.trace", "notes.txt", "20260103T000000.000Z-cpu.trace.part"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1000*(i+1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "20260104T000000.000Z-cpu.trace")); err != nil {
		t.Fatal(err)
	}
	p, _ := newProfiles(t, ProfileOptions{Dir: dir, Keep: 3, MaxBytes: LeastMaxBytes})
	if names := files(t, dir); slices.Contains(names, "20260103T000000.000Z-cpu.trace.part") {
		t.Errorf("what a killed process has left is still there: %v", names)
	}
	if all := p.List(); len(all) != 3 || all[0].Name != "20260102T000000.000Z-cpu.trace" || all[0].Bytes != 3000 {
		t.Errorf("%+v", all)
	}
	p.Capture(t.Context(), TriggerStall)
	all := p.List()
	if len(all) != 3 || all[2].Name != "20260102T000000.000Z-cpu.trace" || !slices.Contains(files(t, dir), "notes.txt") {
		t.Errorf("%+v", all)
	}
	for _, name := range []string{"notes.txt", "../watch.go", "/etc/passwd", "", ".", "20260104T000000.000Z-cpu.trace", "20261123T113406.667Z-stall.trace", "20260102T000000.000Z-cpu.trace/.."} {
		if f, err := p.Open(name); err == nil {
			f.Close()
			t.Errorf("%q can be read", name)
		}
	}
	for _, c := range []struct {
		keep  int
		bytes int64
		want  int
	}{{3, 1e9, 0}, {2, 1e9, 1}, {0, 1e9, 3}, {9, 2000, 1}, {9, 1999, 2}, {9, 0, 3}} {
		if got := evict([]Profile{{Bytes: 1000}, {Bytes: 1000}, {Bytes: 1000}}, c.keep, c.bytes); len(got) != c.want {
			t.Errorf("keep %d of %d bytes: %d go, want %d", c.keep, c.bytes, len(got), c.want)
		}
	}
}

// A file that is larger than its share is given up.
func TestBounded(t *testing.T) {
	b := &bounded{w: io.Discard, left: 10}
	if n, err := b.Write(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := b.Write([]byte{1}); !errors.Is(err, errLarge) {
		t.Errorf("%v", err)
	}
}
