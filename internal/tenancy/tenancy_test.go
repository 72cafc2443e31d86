package tenancy

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fileOf writes a keys file of entries.
func fileOf(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFile(t *testing.T) {
	key, hash := NewKey()
	r, err := Open(Options{Path: fileOf(t, fmt.Sprintf(`
# who may ask
keys:
  alice:
    hash: %s
    tenant: research
    models: [llama, qwen]
    band: interactive
    share: 2.5
    max_requests: 3
    requests_per_minute: 60
    tokens_per_minute: 1000
    tokens_per_day: 50000
    max_prompt_tokens: 100
    max_output_tokens: 200
`, hash))})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []http.Header{
		{"Authorization": {"Bearer " + key}}, {"Authorization": {"bearer  " + key}}, {"X-Api-Key": {key}}, {"Api-Key": {key}},
		{"Authorization": {"Basic YTpi"}, "X-Api-Key": {key}},
	} {
		c, err := r.Identify(h, nil)
		if err != nil || c.Key != "alice" || c.Tenant != "research" || c.Band != "interactive" || c.Share != 2.5 || !c.Uses("qwen") || c.Uses("gpt") {
			t.Errorf("caller %+v, %v", c, err)
		}
		if want := (Limits{3, 60, 1000, 50000, 100, 200}); err == nil && c.Account.Limits() != want {
			t.Errorf("limits %+v, want %+v", c.Account.Limits(), want)
		}
	}
	for _, h := range []http.Header{{}, {"Authorization": {"Bearer " + key + "x"}}, {"Authorization": {key}}, {"Authorization": {"Bearer " + strings.Repeat("k", 8<<10)}}, {"Authorization": {"Bearer "}}} {
		c, err := r.Identify(h, nil)
		if c != nil || err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("caller %+v, error %v; want an error without the key", c, err)
		}
	}
}

// Each file is refused with its line, and no error has what may be a key.
func TestBadFiles(t *testing.T) {
	key, hash := NewKey()
	other := strings.Repeat("0", 63) + "1"
	for _, test := range []struct{ file, want string }{
		{"keys:\n  a:\n    hash: " + key, "line 3: a: hash: it is not sha256:"},
		{"keys:\n  a:\n    key: " + key, "line 3: a: key: the file holds hashes only"},
		{"keys:\n  a: " + key, "line 2: a: want fields"},
		{"keys:\n  " + key + ":\n    tenant: x", "line 2: keys: a name looks like a key itself"},
		{"keys:\n  a:\n    hash: sha256:12", "line 3: a: hash: it is not sha256:"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tenat: x", `line 4: unknown key "tenat"`},
		{"keyz:\n  a: b\n", `line 1: unknown key "keyz"`},
		{"keys:\n  a:\n    tenant: x", "line 2: a has no hash"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    role: read", `line 4: unknown key "role"`},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n  \"a\":\n    hash: sha256:0" + other, `line 4: mapping key "a" already defined at [2:3]`},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n  b:\n    hash: " + hash.String(), "a and b have the same hash"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tenant: \"x\\u0007y\"", "line 4: a: tenant: tenant: the name"},
		{"keys:\n  \"a\\nb\":\n    hash: " + hash.String(), "line 2: keys: the name"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    share: 0", "line 4: a: share: want a weight"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tokens_per_day: -1", "line 4: a: tokens_per_day: want a whole number"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    models: []", "line 4: a: models: the list is empty"},
		{"keys: [a]", "line 1: keys: want a mapping"},
		{"keys:\n\ta: b", "line 2: found character"},
	} {
		_, err := Open(Options{Path: fileOf(t, test.file)})
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), key) {
			t.Errorf("%q:\n  error %v\n  want  %s", test.file, err, test.want)
		}
	}
}

// What was used stays used when the file is read again, with other limits; a broken file
// changes nothing, and limits set live stay until the file's own change.
func TestReload(t *testing.T) {
	key, hash := NewKey()
	path := fileOf(t, "keys:\n  a:\n    hash: "+hash.String()+"\n    tokens_per_day: 100\n")
	r, err := Open(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	caller := func() *Caller {
		c, err := r.Identify(http.Header{"X-Api-Key": {key}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	write := func(text string) error {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return r.Reload()
	}
	now := time.Now()
	caller().Account.Charge(100)
	if got := caller().Account.Enter(now); got.Reason != OverTokensPerDay {
		t.Fatalf("refusal %+v", got)
	}
	if err := write("keys:\n  a:\n    hash: nonsense\n"); err == nil || caller().Account.Enter(now).Reason != OverTokensPerDay {
		t.Fatalf("a broken file: %v; the old one must stay", err)
	}
	if err := write("keys:\n  a:\n    hash: " + hash.String() + "\n    tokens_per_day: 101\n"); err != nil || caller().Account.Enter(now).Reason != "" {
		t.Fatalf("a higher limit does not apply: %v", err)
	}
	if !r.SetLimits("a", Limits{TokensPerDay: 50}, now) || r.SetLimits("b", Limits{}, now) {
		t.Fatal("limits can be set of keys that there are, and of no others")
	}
	if err := r.Reload(); err != nil || caller().Account.Limits().TokensPerDay != 50 {
		t.Fatalf("limits set live did not stay: %+v, %v", caller().Account.Limits(), err)
	}
	if err := write("keys:\n  a:\n    hash: " + hash.String() + "\n    tokens_per_day: 102\n"); err != nil || caller().Account.Limits().TokensPerDay != 102 {
		t.Fatalf("the file's new limits do not apply: %+v, %v", caller().Account.Limits(), err)
	}
	if err := write("keys: {}\n"); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Identify(http.Header{"X-Api-Key": {key}}, nil); err == nil {
		t.Fatalf("a revoked key is known: %+v", c)
	}
}

// request is a request of a simulation.
type simulated struct{ left int64 }

// A budget of a day, and a rate of tokens, are exceeded by no more than what the requests under
// way still got, whatever is charged when, and however the clock steps.
func TestBudgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Now()
		l := Limits{TokensPerDay: rapid.Int64Range(1, 1000).Draw(t, "day"), TokensPerMinute: rapid.IntRange(1, 500).Draw(t, "minute"), Requests: rapid.IntRange(0, 8).Draw(t, "requests")}
		a := NewAccount(l, start)
		now := start
		var under []*simulated
		var day, total, inFlight int64 // charged of the day and in all, and what is to come
		mostFlight := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			case 1:
				if refusal := a.Enter(now); refusal.Reason == "" {
					x := &simulated{rapid.Int64Range(1, 300).Draw(t, "tokens")}
					under, inFlight = append(under, x), inFlight+x.left
					mostFlight = max(mostFlight, inFlight)
					if day >= l.TokensPerDay {
						t.Fatalf("a request began with %d of %d tokens used", day, l.TokensPerDay)
					}
					if l.Requests > 0 && len(under) > l.Requests {
						t.Fatalf("%d requests at once, of %d", len(under), l.Requests)
					}
				}
			default:
				if len(under) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(under)-1).Draw(t, "which")
				n := rapid.Int64Range(1, under[i].left).Draw(t, "n")
				a.Charge(n)
				day, total, inFlight = day+n, total+n, inFlight-n
				if under[i].left -= n; under[i].left == 0 {
					a.Leave()
					under = append(under[:i], under[i+1:]...)
				}
			}
			if dayOf(now) != dayOf(start) {
				return // another day has a budget of its own
			}
			if day > l.TokensPerDay+mostFlight {
				t.Fatalf("%d tokens used of %d, with at most %d under way", day, l.TokensPerDay, mostFlight)
			}
			if may := float64(l.TokensPerMinute) * (1 + now.Sub(start).Minutes()); float64(total) > may+float64(mostFlight)+1 {
				t.Fatalf("%d tokens within %v at %d a minute, with at most %d under way", total, now.Sub(start), l.TokensPerMinute, mostFlight)
			}
		}
	})
}

// A clock that is set over midnight and back renews the budget once, and one that was set far
// ahead and back does not keep it from being renewed the next day.
func TestSteppingClock(t *testing.T) {
	now := time.Now() // goes on as it should, whatever the wall clock says
	today := dayOf(now)
	a := NewAccount(Limits{TokensPerDay: 10}, now)
	renewals := 0
	for _, ahead := range []int64{1, 0, 1, 0, 400, 0, -3, 0, 1, 0} {
		a.Charge(10)
		now = now.Add(time.Minute)
		if a.enter(now, today+ahead).Reason == "" {
			renewals++
		}
	}
	if renewals != 1 {
		t.Errorf("%d renewals within minutes, want 1", renewals)
	}
	if a.Charge(10); a.enter(now.Add(24*time.Hour), today+1).Reason != "" {
		t.Error("the day after does not renew the budget")
	}
}

// Rates say when to ask again, and a request that waits for that long is admitted.
func TestRates(t *testing.T) {
	now := time.Now()
	a := NewAccount(Limits{RequestsPerMinute: 6}, now)
	for range 6 {
		if r := a.Enter(now); r.Reason != "" {
			t.Fatalf("%+v", r)
		}
	}
	r := a.Enter(now)
	if r.Reason != OverRequestsPerMinute || r.Limit != 6 || r.After < 9*time.Second || r.After > 11*time.Second {
		t.Fatalf("%+v, want a wait of 10 s", r)
	}
	if r := a.Enter(now.Add(r.After + time.Millisecond)); r.Reason != "" {
		t.Fatalf("%+v after the wait", r)
	}
	a = NewAccount(Limits{TokensPerMinute: 60}, now)
	a.Charge(180)
	if r = a.Enter(now); r.Reason != OverTokensPerMinute || r.After < 120*time.Second || r.After > 122*time.Second {
		t.Fatalf("%+v, want a wait of 121 s", r)
	}
	if r := a.Enter(now.Add(r.After + time.Millisecond)); r.Reason != "" {
		t.Fatalf("%+v after the wait", r)
	}
}

// BenchmarkIdentify is what a key costs a request: the look-up among 10,000, and the account
// with all limits set.
func BenchmarkIdentify(b *testing.B) {
	var text strings.Builder
	text.WriteString("keys:\n")
	var key string
	for i := range 10_000 {
		k, hash := NewKey()
		if i == 5000 {
			key = k
		}
		fmt.Fprintf(&text, "  key-%d:\n    hash: %s\n    tokens_per_minute: 1000000000\n    tokens_per_day: 1000000000000\n    requests_per_minute: 1000000000\n    max_requests: 10\n", i, hash)
	}
	r, err := Open(Options{Path: fileOf(b, text.String())})
	if err != nil {
		b.Fatal(err)
	}
	for name, value := range map[string]string{"known": key, "unknown": key[:len(key)-1] + "!"} {
		h := http.Header{"Authorization": {"Bearer " + value}, "Content-Type": {"application/json"}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := r.Identify(h, nil)
				if err == nil {
					if c.Account.Enter(time.Now()).Reason != "" {
						b.Fatal("refused")
					}
					c.Account.Charge(100)
					c.Account.Leave()
				} else if name == "known" {
					b.Fatal(err)
				}
			}
		})
	}
}
