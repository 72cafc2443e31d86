package sglangipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/disk"
	"weir/internal/engine"
)

// Schedulers say how busy they are in a file of shared memory, which the launcher names: a
// head, and a slot for each rank, which holds the length of a map and the map. They write
// it every few steps, under a lock of the file.
const (
	loadsMagic   = "SLNS"
	loadsVersion = 2
	loadsHead    = 12
	maxSlot      = 1 << 20
)

var errBusy = errors.New("it is being written")

// Load implements engine.Loaded. It is the sum of the ranks' latest reports, with the mean
// share of their caches in use.
func (e *Engine) Load() (engine.Load, bool) {
	s := e.up()
	if s == nil || s.manifest.Loads == "" {
		return engine.Load{}, false
	}
	l, err := readLoads(s.manifest.Loads, s.manifest.Ranks)
	if err == nil {
		s.load.Store(&l)
	} // or it is being written, or of a release that has another form
	if last := s.load.Load(); last != nil {
		return *last, true
	}
	return engine.Load{}, false
}

// readLoads reads the file. It does not wait for a writer.
func readLoads(path string, ranks int) (l engine.Load, err error) {
	f, err := disk.Open(path)
	if err != nil {
		return l, err
	}
	defer f.Close() // which unlocks it
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return l, errBusy
	}
	var head [loadsHead]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return l, err
	}
	version, has, slot := binary.LittleEndian.Uint16(head[4:]), int(binary.LittleEndian.Uint16(head[6:])), int64(binary.LittleEndian.Uint32(head[8:]))
	if string(head[:4]) != loadsMagic || version != loadsVersion || has < ranks || slot < 4 || slot > maxSlot {
		return l, fmt.Errorf("%s: %q of version %d has %d ranks in slots of %d bytes", path, head[:4], version, has, slot)
	}
	each, at, latest := make([]engine.RankLoad, ranks), make([]float64, ranks), 0.0
	for rank := range each {
		each[rank].Rank = rank
		b := make([]byte, slot)
		if _, err := f.ReadAt(b, loadsHead+int64(rank)*slot); err != nil && !errors.Is(err, io.EOF) {
			return l, err
		}
		n := int64(binary.LittleEndian.Uint32(b))
		if n > slot-4 {
			return l, fmt.Errorf("%s: rank %d has %d bytes in a slot of %d", path, rank, n, slot)
		}
		if n == 0 {
			continue // it has said nothing yet
		}
		if at[rank], err = readLoad(&each[rank], b[4:4+n]); err != nil {
			return l, fmt.Errorf("%s: rank %d: %w", path, rank, err)
		}
		latest = max(latest, at[rank])
	}
	for rank := range each {
		each[rank].Behind = engine.Behind(at[rank], latest)
	}
	return engine.SumLoads(each), nil
}

// readLoad reads what a rank says and when it said so, a map in which what is at its default is left
// out.
func readLoad(l *engine.RankLoad, b []byte) (at float64, err error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for range n {
		if err != nil {
			return 0, err
		}
		var name []byte
		if name, b, err = msgp.ReadMapKeyZC(b); err != nil {
			return 0, err
		}
		switch string(name) {
		case "num_running_reqs", "num_waiting_reqs":
			var v int
			if v, b, err = msgp.ReadIntBytes(b); err == nil && v < 0 {
				err = fmt.Errorf("%s is %d", name, v)
			}
			if string(name) == "num_running_reqs" {
				l.Running = v
			} else {
				l.Waiting = v
			}
		case "token_usage":
			l.KVUsage, b, err = readShare(b)
		case "timestamp":
			if msgp.NextType(b) != msgp.Float64Type {
				b, err = msgp.Skip(b)
			} else {
				at, b, err = msgp.ReadFloat64Bytes(b)
			}
		default:
			b, err = msgp.Skip(b)
		}
	}
	return at, err
}

// readShare reads a share, which may be written as a whole number.
func readShare(b []byte) (v float64, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.Float32Type, msgp.Float64Type:
		v, rest, err = msgp.ReadFloat64Bytes(b)
	default:
		var n int
		n, rest, err = msgp.ReadIntBytes(b)
		v = float64(n)
	}
	if err == nil && !(v >= 0) {
		err = fmt.Errorf("token_usage is %v", v)
	}
	return min(v, 1), rest, err
}
