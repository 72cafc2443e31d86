package budget

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/disk"
	"weir/internal/tenancy"
)

// gateway is a process with accounts and their book.
type gateway struct {
	book     *Book
	accounts map[string]*tenancy.Account
	unsaved  map[string]int64 // used since the last write
}

func start(t interface{ Fatal(...any) }, path string, names []string, limit int64, now time.Time) *gateway {
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{b, map[string]*tenancy.Account{}, map[string]int64{}}
	for _, name := range names {
		a := tenancy.NewAccount(tenancy.Limits{TokensPerDay: limit}, now)
		b.Restore(name, a, now)
		g.accounts[name] = a
	}
	return g
}

func (g *gateway) write(t interface{ Fatal(...any) }, now time.Time) {
	err := g.book.Write(func(yield func(string, *tenancy.Account) bool) {
		for name, a := range g.accounts {
			if !yield(name, a) {
				return
			}
		}
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	clear(g.unsaved)
}

func (g *gateway) charge(name string, tokens int64) {
	g.accounts[name].Charge(tokens)
	g.unsaved[name] += tokens
}

// Gateways that share a file, are killed and start again: what is lost is what each had used
// since its last write, and nothing counts twice. At rest all have the same.
func TestSharedAndKilled(t *testing.T) {
	dir, files := t.TempDir(), 0
	noon := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		files++
		path := filepath.Join(dir, fmt.Sprint(files))
		names := []string{"a", "b", "issuer:c"}
		running := []*gateway{}
		total := map[string]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := -1
			if len(running) > 0 {
				i = rapid.IntRange(0, len(running)-1).Draw(t, "which")
			}
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case i < 0 || what == 0 && len(running) < 3:
				running = append(running, start(t, path, names, 1<<40, noon))
			case what == 1: // killed
				for name, n := range running[i].unsaved {
					total[name] -= n
				}
				running = append(running[:i], running[i+1:]...)
			case what <= 4:
				running[i].write(t, noon)
			default:
				name := rapid.SampledFrom(names).Draw(t, "name")
				n := rapid.Int64Range(-min(running[i].unsaved[name], 3), 50).Draw(t, "n") // what it has estimated may be taken back
				running[i].charge(name, n)
				total[name] += n
			}
		}
		for range 2 {
			for _, g := range running {
				g.write(t, noon)
			}
		}
		running = append(running, start(t, path, names, 1<<40, noon))
		for _, g := range running {
			for _, name := range names {
				if s, _ := g.accounts[name].Spent(noon); s.Tokens != total[name] {
					t.Fatalf("%s has used %d, want %d", name, s.Tokens, total[name])
				}
			}
		}
	})
}

// A new day has its own budget, also over a restart; nothing is written where nobody has a
// budget, and a limit that comes later counts what was used before.
func TestDays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "used")
	noon := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour)
	g := start(t, path, []string{"a"}, 0, noon)
	g.charge("a", 7)
	if g.write(t, noon); g.book.version != (disk.Version{}) {
		t.Fatal("a file was made although nobody has a budget")
	}
	g.accounts["a"].Set(tenancy.Limits{TokensPerDay: 10}, noon)
	g.charge("a", 2)
	g.write(t, noon)
	g = start(t, path, []string{"a"}, 10, noon)
	if s, _ := g.accounts["a"].Spent(noon); s.Tokens != 9 {
		t.Fatalf("%d used after a restart, want 9", s.Tokens)
	}
	if g.charge("a", 1); g.accounts["a"].Enter(noon).Reason != tenancy.OverTokensPerDay {
		t.Fatal("the budget is not used up")
	}
	g.write(t, noon)
	tomorrow := noon.Add(24 * time.Hour)
	g = start(t, path, []string{"a"}, 10, tomorrow)
	if r := g.accounts["a"].Enter(tomorrow); r.Reason != "" {
		t.Fatalf("the next day: %+v", r)
	}
	g.charge("a", 3)
	g.write(t, tomorrow)
	// The clock is set back and ahead again between restarts: one renewal, not more.
	g = start(t, path, []string{"a"}, 10, noon)
	g.charge("a", 7)
	g.write(t, noon)
	for _, at := range []time.Time{tomorrow, noon, tomorrow.Add(time.Hour)} {
		g = start(t, path, []string{"a"}, 10, at)
		if g.accounts["a"].Enter(at).Reason != tenancy.OverTokensPerDay {
			t.Errorf("at %v the budget is renewed once more", at)
		}
		g.write(t, at)
	}
	after := tomorrow.Add(25 * time.Hour)
	if g = start(t, path, []string{"a"}, 10, after); g.accounts["a"].Enter(after).Reason != "" {
		t.Error("the day after does not renew the budget")
	}
}

// An estimate of yesterday that is taken back today leaves no negative number in the file, which
// would be refused at the next start.
func TestTakenBackTheNextDay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "used")
	noon := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour)
	g := start(t, path, []string{"a"}, 100, noon)
	g.charge("a", 7)
	g.write(t, noon)
	tomorrow := noon.Add(24 * time.Hour)
	g.accounts["a"].Spent(tomorrow)
	g.charge("a", -5)
	g.write(t, tomorrow)
	g.charge("a", 3)
	g.write(t, tomorrow)
	if s, _ := start(t, path, []string{"a"}, 100, tomorrow).accounts["a"].Spent(tomorrow); s.Tokens != 3 {
		t.Errorf("%d used, want 3", s.Tokens)
	}
}

// A file that is none is an error that says what to do; one that cannot be written loses nothing
// that is used.
func TestBadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "used")
	for _, text := range []string{"", "{", `{"version":2,"accounts":{}}`, `{"version":1,"acounts":{}}`, `{"version":1,"accounts":{"a":{"day":"x"}}}`,
		`{"version":1,"accounts":{"a":{"day":20000,"tokens":-1}}}`, `{"version":1,"accounts":{"a":{"day":-1,"tokens":1}}}`, `{"version":1,"accounts":{"a":{"day":20000,"tokens":1,"renewed":-1}}}`, `{"version":1,"accounts":{"a":{"day":20000,"tokens":9223372036854775807}}}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "remove this one") {
			t.Errorf("%q: %v", text, err)
		}
	}
	now := time.Now()
	long := filepath.Join(t.TempDir(), strings.Repeat("u", 250)) // there is no place for a temporary name
	g := start(t, long, []string{"a"}, 100, now)
	g.charge("a", 5)
	if err := g.book.Write(func(yield func(string, *tenancy.Account) bool) { yield("a", g.accounts["a"]) }, now); err == nil {
		t.Error("no error although nothing can be written")
	}
	g.book.path = path
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	g.write(t, now)
	if s, _ := start(t, path, []string{"a"}, 100, now).accounts["a"].Spent(now); s.Tokens != 5 {
		t.Errorf("%d used, want 5", s.Tokens)
	}
}

// A file that a person has emptied with null is an empty one.
func TestNoAccounts(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "used"), time.Now()
	if err := os.WriteFile(path, []byte(`{"version":1,"accounts":null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	g := start(t, path, []string{"a"}, 10, now)
	g.charge("a", 3)
	g.write(t, now)
	g = start(t, path, []string{"a"}, 10, now)
	if s, _ := g.accounts["a"].Spent(now); s.Tokens != 3 {
		t.Errorf("%d used after a restart, want 3", s.Tokens)
	}
}
