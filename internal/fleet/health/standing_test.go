package health

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// keeper is an engine that serves requests in order of arrival, with a cache of so many
// tokens. It puts running requests back when the cache is full: the newest to the head of its
// queue, as vLLM does, or the one with the fewest ids to the end, as SGLang does.
type keeper struct {
	cache   int
	end     bool
	waiting []*kept
	running []*kept
}

type kept struct {
	Request
	prompt, tokens, most int
	hung                 bool // it keeps its place and gets nothing
}

func (q *kept) size() int { return q.prompt + q.tokens }

func (k *keeper) used() (n int) {
	for _, q := range k.running {
		n += q.size()
	}
	return n
}

// step gives each running request a token, and makes room for the next step.
func (k *keeper) step(now int64) {
	for _, q := range k.running {
		if q.hung && q.tokens > 0 {
			continue
		}
		if q.tokens++; q.tokens == 1 {
			q.Started(now)
		}
	}
	k.running = slices.DeleteFunc(k.running, func(q *kept) bool {
		if q.tokens < q.most {
			return false
		}
		q.Ended(now, Done)
		return true
	})
	back := false
	for k.used()+len(k.running) > k.cache {
		at := len(k.running) - 1
		if k.end {
			for i, q := range k.running {
				if q.tokens < k.running[at].tokens {
					at = i
				}
			}
		}
		q := k.running[at]
		k.running = slices.Delete(k.running, at, at+1)
		if back = true; k.end {
			k.waiting = append(k.waiting, q)
		} else {
			k.waiting = slices.Insert(k.waiting, 0, q)
		}
	}
	for !back && len(k.waiting) > 0 && k.used()+k.waiting[0].size()+len(k.running) < k.cache {
		k.running = append(k.running, k.waiting[0])
		k.waiting = k.waiting[1:]
	}
}

// A stream that the engine has put back because its cache is full never counts as standing
// still, however long it waits. One that hangs does, as long as the engine begins others.
func TestPutBackIsNotStill(t *testing.T) {
	found, backs := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := NewFleet(Limits{}, 0)
		r := f.Add(Member{Engine: "e", Rank: -1, Serves: []string{"m"}})
		r.Joined(0, true)
		k := &keeper{cache: rapid.IntRange(60, 400).Draw(t, "cache"), end: rapid.Bool().Draw(t, "to the end")}
		every := rapid.Int64Range(1, 20).Draw(t, "steps between requests")
		hangs := rapid.IntRange(0, 30).Draw(t, "which hangs") // 0: none
		var hung *kept
		made, put, grew := 0, 0, time.Duration(0)
		const step = 100 * ms
		for i := int64(1); i <= 1200; i++ {
			now := i * step
			if i%every == 0 {
				made++
				q := &kept{prompt: rapid.IntRange(1, 50).Draw(t, "prompt"), most: rapid.IntRange(1, 60).Draw(t, "most"), hung: made == hangs}
				if q.hung {
					hung, q.most = q, 2
				}
				r.HandedOver(&q.Request, now, 10)
				k.waiting = append(k.waiting, q)
			}
			f.Tick(now, 0)
			k.step(now)
			if i%10 != 0 {
				continue
			}
			for _, q := range slices.Concat(k.waiting, k.running) {
				q.Counted(q.tokens, true)
			}
			r.lookAtAll(now, false)
			for _, q := range k.waiting {
				if q.Still() > 0 && q != hung {
					t.Fatalf("after %v a request that waits with %d tokens counts as still for %v", time.Duration(now), q.tokens, q.Still())
				}
				if q.tokens > 0 {
					put++
				}
			}
			for _, q := range k.running {
				if q.Still() > 0 && q != hung {
					t.Fatalf("after %v a request that runs counts as still for %v", time.Duration(now), q.Still())
				}
			}
			if hung != nil {
				grew = max(grew, hung.Still())
			}
		}
		if grew > 0 {
			found++
		}
		if put > 0 {
			backs++
		}
	})
	if found == 0 || backs == 0 {
		t.Errorf("%d that hang were found, %d histories had one put back", found, backs)
	}
}

// lookAtAll is a look, once all requests were counted.
func (r *Rank) lookAtAll(now int64, roomy bool) {
	r.Look(now)
	for q := r.tokens.head; q != nil; q = q.links[anyToken].next {
		q.Compare(roomy)
	}
}

// standing is a rank with streams that the test gives tokens, a second at a time.
type standing struct {
	f     *Fleet
	r     *Rank
	now   int64
	all   []*kept
	roomy bool
}

func newStanding() *standing {
	f := NewFleet(Limits{}, 0)
	s := &standing{f: f, r: f.Add(Member{Engine: "e", Rank: -1, Serves: []string{"m"}})}
	s.r.Joined(0, true)
	return s
}

func (s *standing) begin(priority int64) *kept {
	q := s.wait(priority)
	q.Started(s.now)
	q.tokens = 1
	return q
}

func (s *standing) wait(priority int64) *kept {
	q := new(kept)
	s.r.HandedOver(&q.Request, s.now, 10)
	q.Prioritized(priority)
	s.all = append(s.all, q)
	return q
}

// second lets a second pass, by the gateway's clock all but late of it, in which all but those
// given have a token.
func (s *standing) second(late time.Duration, still ...*kept) {
	for range 10 {
		s.now += 100 * ms
		s.f.Tick(s.now, late/10)
	}
	for _, q := range s.all {
		if q.tokens > 0 && !slices.Contains(still, q) {
			q.tokens++
		}
		q.Counted(q.tokens, true)
	}
	s.r.lookAtAll(s.now, s.roomy)
}

func (s *standing) seconds(n int, still ...*kept) {
	for range n {
		s.second(0, still...)
	}
}

// TestStill has what makes a stream count as standing still, and what does not.
func TestStill(t *testing.T) {
	for _, test := range []struct {
		name string
		want time.Duration
		run  func(s *standing) (of *kept)
	}{
		{"the rank begins newer ones", 8 * time.Second, func(s *standing) *kept {
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			s.seconds(2, q)
			s.begin(0)
			s.seconds(8, q)
			return q
		}},
		{"it begins nothing", 0, func(s *standing) *kept {
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			s.seconds(60, q)
			return q
		}},
		{"its cache is half empty", 9 * time.Second, func(s *standing) *kept {
			s.roomy = true
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			s.seconds(10, q)
			return q
		}},
		{"newer ones of another priority", 0, func(s *standing) *kept {
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			s.seconds(2, q)
			s.begin(5)
			s.seconds(60, q)
			return q
		}},
		{"those begun were handed over before", 0, func(s *standing) *kept {
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			late := s.wait(0)
			s.seconds(2, q)
			late.Started(s.now)
			late.tokens = 1
			s.seconds(60, q)
			return q
		}},
		{"most stand still", 0, func(s *standing) *kept {
			s.roomy = true
			q, other := s.begin(0), s.begin(0)
			s.begin(0)
			s.seconds(2)
			s.seconds(60, q, other)
			return q
		}},
		{"all stand still", 0, func(s *standing) *kept {
			s.roomy = true
			q, other := s.begin(0), s.begin(0)
			s.seconds(60, q, other)
			return q
		}},
		{"it waits for its first token", 0, func(s *standing) *kept {
			s.roomy = true
			q := s.wait(0)
			s.begin(0)
			s.seconds(60)
			return q
		}},
		{"it advances again", 0, func(s *standing) *kept {
			s.roomy = true
			q := s.begin(0)
			s.begin(0)
			s.seconds(10, q)
			s.seconds(1)
			return q
		}},
		{"the gateway itself stood still", 0, func(s *standing) *kept {
			s.roomy = true
			q := s.begin(0)
			s.begin(0)
			s.seconds(2)
			for range 60 {
				s.second(time.Second, q)
			}
			return q
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStanding()
			if got := test.run(s).Still(); got != test.want {
				t.Errorf("still for %v, want %v", got, test.want)
			}
			for _, q := range s.all {
				if q.tokens > 1 && q.Still() > 0 && q != s.all[0] {
					t.Errorf("another one stands still for %v", q.Still())
				}
			}
		})
	}
}
