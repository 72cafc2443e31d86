package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"time"
)

// Turn lets one caller at a time take a profile.
type Turn struct {
	mu     sync.Mutex
	holder string
}

// Take takes the turn. If another caller has it, Take returns the name of that caller.
func (t *Turn) Take(who string) (holder string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holder != "" {
		return t.holder, false
	}
	t.holder = who
	return who, true
}

// Give ends the turn.
func (t *Turn) Give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holder = ""
}

// Holder is who has it, empty where nobody does.
func (t *Turn) Holder() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holder
}

// ProfileOptions control where and how many profiles are kept.
type ProfileOptions struct {
	Dir      string
	Keep     int   // files; 0 means 20
	MaxBytes int64 // of all of them; 0 means 256 MiB
	PerHour  int   // captures of each trigger; 0 means 4
	CPU      time.Duration
	Turn     *Turn
	Log      *slog.Logger

	create func(name string) (io.WriteCloser, error) // nil: in Dir
}

// DefaultCPU is how long a CPU profile takes.
const DefaultCPU = 5 * time.Second

// LeastMaxBytes is the least of ProfileOptions.MaxBytes: four files of some size.
const LeastMaxBytes = 4 << 20

// maxFile bounds a file. The flight recorder's window, which the runtime does not
// guarantee, is a quarter of it.
const maxFile = 32 << 20

// Profiles keeps the runtime's flight recording of the seconds before a trigger and a CPU
// profile of those after it, as files in a folder of bounded size.
type Profiles struct {
	o        ProfileOptions
	root     *os.Root
	recorder *trace.FlightRecorder

	mu     sync.Mutex
	taken  [NumTriggers][]time.Time // captures of the last hour
	left   uint64                   // captures that there was no room for
	failed uint64                   // files that could not be written
	kept   uint64
}

// Profile is a file.
type Profile struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"` // trace or cpu
	Trigger string    `json:"trigger"`
	Time    time.Time `json:"time"`
	Bytes   int64     `json:"bytes"`
}

var profileName = regexp.MustCompile(`^(\d{8}T\d{6}\.\d{3}Z)-(stall|backlog|output_delay|queue_wait|cpu)\.(trace|pprof)$`)

const (
	stampForm = "20060102T150405.000Z"
	partial   = ".part"
)

// parseName parses the name of a file in the folder; ok is false for other files.
func parseName(name string) (p Profile, ok bool) {
	m := profileName.FindStringSubmatch(name)
	if m == nil {
		return p, false
	}
	at, err := time.Parse(stampForm, m[1])
	p = Profile{Name: name, Kind: "trace", Trigger: m[2], Time: at}
	if m[3] == "pprof" {
		p.Kind = "cpu"
	}
	return p, err == nil
}

// NewProfiles opens the folder, creates it if it does not exist, and starts the flight recorder.
func NewProfiles(o ProfileOptions) (*Profiles, error) {
	o.Keep, o.MaxBytes, o.PerHour, o.CPU = cmp.Or(o.Keep, 20), cmp.Or(o.MaxBytes, 256<<20), cmp.Or(o.PerHour, 4), cmp.Or(o.CPU, DefaultCPU)
	if o.Turn == nil {
		o.Turn = new(Turn)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of profiles cannot be made: %w", err)
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of profiles cannot be opened: %w", err)
	}
	p := &Profiles{o: o, root: root}
	if o.create == nil {
		p.o.create = func(name string) (io.WriteCloser, error) {
			return root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		}
	}
	p.sweep()
	p.recorder = trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: 2 * time.Second, MaxBytes: uint64(p.maxFile() / 4)})
	if err := p.recorder.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("the flight recorder cannot be started: %w", err), root.Close())
	}
	return p, nil
}

// sweep removes what a killed process has left.
func (p *Profiles) sweep() {
	for _, name := range p.names() {
		if base, ok := strings.CutSuffix(name, partial); ok {
			if _, ours := parseName(base); ours {
				_ = p.root.Remove(name) // it is tried again with the next start
			}
		}
	}
}

// Close ends the flight recorder. No capture may be under way.
func (p *Profiles) Close() {
	p.recorder.Stop()
	_ = p.root.Close() // nothing is written through it
}

// maxFile is how large a file may be.
func (p *Profiles) maxFile() int64 { return min(maxFile, p.o.MaxBytes/4) }

// allowed takes a capture of those that a trigger has in an hour, at a time. It is false if they are
// spent. One trigger spends none of another's.
func (p *Profiles) allowed(why Trigger, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := &p.taken[why]
	*taken = slices.DeleteFunc(*taken, func(t time.Time) bool { return now.Sub(t) >= time.Hour || t.After(now) })
	if len(*taken) >= p.o.PerHour {
		p.left++
		return false
	}
	*taken = append(*taken, now)
	return true
}

// takenLastHour returns how many captures there were, of all triggers.
func (p *Profiles) takenLastHour() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, taken := range p.taken {
		for _, at := range taken {
			if time.Since(at) < time.Hour {
				n++
			}
		}
	}
	return n
}

// Capture keeps a recording of the time before now and a profile of the time after it,
// unless another profile is being taken or the hour has had the trigger's captures. It takes some
// seconds, or until ctx ends.
func (p *Profiles) Capture(ctx context.Context, why Trigger) {
	who := "weir itself, because of " + why.String()
	if holder, ok := p.o.Turn.Take(who); !ok {
		p.o.Log.Info("no profile is kept: one is being taken", "trigger", why.String(), "by", holder)
		return
	}
	defer p.o.Turn.Give()
	now := time.Now().UTC()
	if !p.allowed(why, now) {
		p.o.Log.Info("no profile is kept: the hour has had those of its trigger (--profiles-per-hour)", "trigger", why.String())
		return
	}
	name := now.Format(stampForm) + "-" + why.String()
	p.keep(name+".trace", func(w io.Writer) error {
		_, err := p.recorder.WriteTo(w)
		return err
	})
	p.keep(name+".pprof", func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		over := time.NewTimer(p.o.CPU)
		defer over.Stop()
		select {
		case <-over.C:
		case <-ctx.Done():
		}
		return nil
	})
}

// bounded is a file that may not become larger than left.
type bounded struct {
	w    io.Writer
	left int64
	err  error
}

var errLarge = errors.New("it is larger than a quarter of --profiles-max-bytes, or 32 MiB")

// Write implements io.Writer. The CPU profiler does not say when it could not write.
func (b *bounded) Write(data []byte) (int, error) {
	if b.err == nil && int64(len(data)) > b.left {
		b.err = errLarge
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.w.Write(data)
	b.left -= int64(n)
	b.err = err
	return n, err
}

// keep writes a file and gives it its name when it is complete. A failed write leaves
// nothing.
func (p *Profiles) keep(name string, write func(io.Writer) error) {
	err := p.write(name, write)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed++
		p.o.Log.Warn("a profile cannot be kept", "name", name, "error", err)
		return
	}
	p.kept++
	p.o.Log.Info("a profile was kept", "name", name, "folder", p.o.Dir)
}

func (p *Profiles) write(name string, write func(io.Writer) error) (err error) {
	for _, old := range evict(p.List(), p.o.Keep-1, p.o.MaxBytes-p.maxFile()) {
		if err := p.root.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	file, err := p.o.create(name + partial)
	if err != nil {
		return err
	}
	to := &bounded{w: file, left: p.maxFile()}
	if err = write(to); err == nil {
		err = to.err
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = p.root.Rename(name+partial, name)
	}
	if err != nil {
		_ = p.root.Remove(name + partial) // it may not be there
	}
	return err
}

// evict returns the oldest files that must go so that there are no more than keep and they
// have no more than bytes.
func evict(newest []Profile, keep int, bytes int64) (names []string) {
	for i, f := range newest {
		if bytes -= f.Bytes; i >= keep || bytes < 0 {
			for _, old := range newest[i:] {
				names = append(names, old.Name)
			}
			return names
		}
	}
	return nil
}

func (p *Profiles) names() (names []string) {
	dir, err := p.root.Open(".")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ = dir.Readdirnames(-1) // what could be read is there
	return names
}

// List returns the files, the latest first.
func (p *Profiles) List() []Profile {
	all := []Profile{}
	for _, name := range p.names() {
		f, ok := parseName(name)
		if !ok {
			continue
		}
		info, err := p.root.Lstat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		f.Bytes = info.Size()
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Profile) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.Name, a.Name)) })
	return all
}

// Open opens a file of the list.
func (p *Profiles) Open(name string) (*os.File, error) {
	if _, ok := parseName(name); !ok {
		return nil, fs.ErrNotExist
	}
	info, err := p.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	return p.root.Open(name)
}
