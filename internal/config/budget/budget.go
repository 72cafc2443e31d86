// Package budget keeps in a file what callers have used of their day, so that a restart renews
// no budget. The file is replaced whole, at most once in an interval, by a process that holds the
// lock of its folder. A process adds what it has used since its last write to the content of the
// file. So a gateway that takes another one's place, and gateways that share the file, count
// together.
package budget

import (
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/disk"
	"weir/internal/tenancy"
)

// Interval is the time between two writes. A process that is killed forgets what was used since
// the last one.
const Interval = time.Second

const (
	version = 1
	// maxTokens bounds what an account may have used, so that no sum overflows.
	maxTokens = 1 << 53
	// kept is for how many days the file has what was used on a day.
	kept = 3
)

// form is the content of a file.
type form struct {
	Version  int                      `json:"version"`
	Accounts map[string]tenancy.Spent `json:"accounts"`
}

// Book is the file of what accounts have used, by the names of their grants.
type Book struct {
	path string

	mu      sync.Mutex
	file    map[string]tenancy.Spent // its content
	version disk.Version             // that was read or written last
	had     map[string]tenancy.Spent // by accounts, when the file was written: the file has it
}

// Open reads the file, if there is one.
func Open(path string) (*Book, error) {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		path = at
	}
	b := &Book{path: path, file: map[string]tenancy.Spent{}, had: map[string]tenancy.Spent{}}
	return b, b.read()
}

// read reads the file anew if it is another one than before.
func (b *Book) read() error {
	now, err := disk.VersionOf(b.path)
	switch {
	case err != nil:
		return err
	case now == b.version:
		return nil
	case now == disk.Version{}:
		b.file, b.version = map[string]tenancy.Spent{}, now
		return nil
	}
	data, err := disk.Read(b.path, disk.MaxBudgets)
	if err != nil {
		return err
	}
	f := form{Accounts: map[string]tenancy.Spent{}}
	err = json.Unmarshal(data, &f, json.RejectUnknownMembers(true))
	if err == nil && f.Version != version {
		err = fmt.Errorf("its version is %d, and not %d", f.Version, version)
	}
	for name, s := range f.Accounts {
		if s.Day < 0 || s.Tokens < 0 || s.Renewed < 0 || s.Tokens > maxTokens {
			err = fmt.Errorf("the account %q has a number that cannot be", name)
		}
	}
	if err != nil {
		return fmt.Errorf("%s is no file of used budgets: %w. Give another file, or remove this one: then every budget of today begins anew", b.path, err)
	}
	if f.Accounts == nil { // null
		f.Accounts = map[string]tenancy.Spent{}
	}
	b.file, b.version = f.Accounts, now
	return nil
}

// Restore sets what a new account has used to what the file has under its name.
func (b *Book) Restore(name string, a *tenancy.Account, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.file[name]; ok {
		a.Restore(s, now)
	}
	b.had[name], _ = a.Spent(now)
}

// Write adds what was used since the last call to the file, and what other processes have used
// since then to the accounts. Accounts without a budget are left out.
func (b *Book) Write(accounts iter.Seq2[string, *tenancy.Account], now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, err := disk.VersionOf(b.path); err == nil && v == b.version && !b.due(accounts, now) {
		return nil
	}
	unlock, err := disk.Lock(filepath.Dir(b.path))
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.read(); err != nil {
		return err
	}
	next, changed := maps.Clone(b.file), false
	had := map[string]tenancy.Spent{}
	others := map[*tenancy.Account]int64{}
	for name, a := range accounts {
		is, limit := a.Spent(now)
		was := b.had[name]
		if limit == 0 {
			had[name] = was
			continue
		}
		in := next[name]
		sum, joined := merge(in, was, is, now.Unix())
		others[a] = joined
		is.Tokens += joined
		had[name] = is
		if sum != in {
			next[name], changed = sum, true
		}
	}
	if changed {
		today := now.Unix() / 86400
		maps.DeleteFunc(next, func(name string, s tenancy.Spent) bool {
			_, there := had[name]
			return !there && s.Day < today-kept
		})
		data, err := json.Marshal(form{version, next}, json.Deterministic(true))
		if err != nil {
			return err
		}
		if err := disk.Replace(b.path, append(data, '\n')); err != nil {
			return err
		}
		b.file = next
		if b.version, err = disk.VersionOf(b.path); err != nil {
			return err
		}
	}
	for a, tokens := range others {
		a.Join(tokens)
	}
	b.had = had
	return nil
}

// due reports whether an account with a budget has used anything that the file does not have.
func (b *Book) due(accounts iter.Seq2[string, *tenancy.Account], now time.Time) bool {
	for name, a := range accounts {
		if is, limit := a.Spent(now); limit != 0 && is != b.had[name] {
			return true
		}
	}
	return false
}

// merge adds to what the file has of an account what was used since it was had, and returns what
// others have added to the file meanwhile. Of two days the later one counts.
func merge(in, had, is tenancy.Spent, now int64) (sum tenancy.Spent, others int64) {
	used := is.Tokens
	if had.Day == is.Day && had.Renewed == is.Renewed {
		used -= had.Tokens
	}
	switch {
	case in.Day > is.Day: // another clock is ahead
		in.Tokens = max(in.Tokens+used, 0)
		return in, 0
	case in.Day < is.Day:
		is.Tokens = max(is.Tokens, 0)
		return is, 0
	}
	others = max(in.Tokens+used, 0) - is.Tokens // what was estimated yesterday may be taken back today
	is.Tokens += others
	if in.Renewed <= now { // otherwise the clock was set back since
		is.Renewed = max(is.Renewed, in.Renewed)
	}
	return is, others
}
