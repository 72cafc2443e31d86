package sglangipc

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
)

// loadsFile is a file as schedulers write it, of a slot for each rank.
func loadsFile(t *testing.T, slots ...map[string]any) string {
	t.Helper()
	const slot = 16384
	b := append([]byte("SLNS"), 2, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(slots)))
	b = binary.LittleEndian.AppendUint32(b, slot)
	for _, s := range slots {
		at := len(b)
		b = append(b, make([]byte, slot)...)
		if s == nil {
			continue
		}
		said, err := msgp.AppendMapStrIntf(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(b[at:], uint32(len(said)))
		copy(b[at+4:], said)
	}
	path := filepath.Join(t.TempDir(), "loads.shm")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The loads that all ranks report are added up; fields with default values are left out of a
// report.
func TestLoads(t *testing.T) {
	path := loadsFile(t, map[string]any{"timestamp": 1.5, "num_running_reqs": 7, "num_waiting_reqs": 2, "token_usage": 0.5, "memory": map[string]any{"x": 1.0}},
		map[string]any{"num_running_reqs": 1, "token_usage": 1, "timestamp": 11.5}, map[string]any{}, nil)
	if l, err := readLoads(path, 4); err != nil || !reflect.DeepEqual(l, engine.Load{Running: 8, Waiting: 2, KVUsage: 0.375, Ranks: []engine.RankLoad{
		{Rank: 0, Running: 7, Waiting: 2, KVUsage: 0.5, Behind: 10 * time.Second}, {Rank: 1, Running: 1, KVUsage: 1}, {Rank: 2}, {Rank: 3},
	}}) {
		t.Errorf("%+v, %v", l, err)
	}
	// A writer is not waited for.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := readLoads(path, 4); err != errBusy {
		t.Errorf("%v", err)
	}
}

// A file of another form says nothing.
func TestLoadsOfAnotherForm(t *testing.T) {
	good, err := os.ReadFile(loadsFile(t, map[string]any{"num_running_reqs": 7}))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"another magic":     func(b []byte) []byte { b[0] = 'X'; return b },
		"another version":   func(b []byte) []byte { b[4] = 3; return b },
		"fewer ranks":       func(b []byte) []byte { b[6] = 0; return b },
		"no slots":          func(b []byte) []byte { clear(b[8:12]); return b },
		"huge slots":        func(b []byte) []byte { b[11] = 0xff; return b },
		"more than a slot":  func(b []byte) []byte { b[14] = 0xff; return b },
		"no map":            func(b []byte) []byte { b[16] = 0xc0; return b },
		"a map that is cut": func(b []byte) []byte { b[12] = 3; return b },
		"cut short":         func(b []byte) []byte { return b[:8] },
		"empty":             func([]byte) []byte { return nil },
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, change(append([]byte(nil), good...)), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := readLoads(path, 1); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	for _, said := range []map[string]any{{"num_running_reqs": -1}, {"num_running_reqs": "x"}, {"token_usage": math.NaN()}, {"token_usage": -1}} {
		if l, err := readLoads(loadsFile(t, said), 1); err == nil {
			t.Errorf("%v: %+v", said, l)
		}
	}
	if _, err := readLoads(filepath.Join(t.TempDir(), "none"), 1); err == nil {
		t.Error("a file that is not there says something")
	}
}

// An engine whose launcher names the file tells its load while it serves. While the file is
// written, or cannot be read, the last word holds; without one nothing is told.
func TestLoadOfAnEngine(t *testing.T) {
	for _, named := range []bool{true, false} {
		path, set := loadsFile(t, map[string]any{"num_running_reqs": 7}, map[string]any{"num_waiting_reqs": 3}), map[string]any{"dp_size": 2}
		if named {
			set["loads"] = path
		}
		p := newPeerSaying(t, set)
		e := New(p.options())
		if _, ok := e.Load(); ok {
			t.Error("told before the engine is there")
		}
		b := enginetest.Start(t, enginetest.Rig{Engine: e, Peer: p, Panics: &p.panics})
		b.WaitReady(true)
		l, ok := e.Load()
		if ok != named || named && !reflect.DeepEqual(l, engine.Load{Running: 7, Waiting: 3, Ranks: []engine.RankLoad{{Rank: 0, Running: 7}, {Rank: 1, Waiting: 3}}}) {
			t.Errorf("named %v: %+v, %v", named, l, ok)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if again, ok := e.Load(); ok != named || !reflect.DeepEqual(again, l) {
			t.Errorf("while it is written: %+v, %v", again, ok)
		}
		if err := os.WriteFile(path, []byte("XXXX"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if again, ok := e.Load(); ok != named || !reflect.DeepEqual(again, l) {
			t.Errorf("after it was overwritten: %+v, %v", again, ok)
		}
	}
}
