package jwt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"weir/internal/infer"
)

const (
	// refresh is how old keys become before they are fetched again: a key that its issuer has
	// withdrawn is good for that long.
	refresh = 10 * time.Minute
	// fetchAgain is the least time between two fetches, whatever keys tokens name.
	fetchAgain = 10 * time.Second
	// fetchBound bounds a fetch, and maxBody what is read of each answer.
	fetchBound = 10 * time.Second
	maxBody    = 1 << 20
	// findBound bounds how long a request waits for a fetch.
	findBound = 3 * time.Second
	// mostKeys bounds the keys of an issuer; a token that names none is tried with each.
	mostKeys = 100
)

// keySet is the keys that an issuer had at one time. It does not change.
type keySet struct {
	text []byte // as they came
	keys []jose.JSONWebKey
}

// parseKeys reads a JWKS. Keys that verify no signature of Algorithms are left out, as those
// for encryption, symmetric ones and broken ones.
func parseKeys(text []byte) (*keySet, error) {
	var list struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errors.New("the answer is no JSON object with a list of keys")
	}
	if len(list.Keys) > mostKeys {
		return nil, fmt.Errorf("the list has %d keys; at most %d are taken", len(list.Keys), mostKeys)
	}
	set := &keySet{text: text}
	for _, one := range list.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(one) == nil && k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			set.keys = append(set.keys, k)
		}
	}
	if len(set.keys) == 0 {
		return nil, fmt.Errorf("the list has no public key for signatures (%d entries)", len(list.Keys))
	}
	return set, nil
}

// find returns the keys that may have made a signature: those of that name, or all if the token
// names none, which are for its algorithm or for any.
func (s *keySet) find(kid, alg string) (keys []jose.JSONWebKey) {
	if s == nil {
		return nil
	}
	for _, k := range s.keys {
		if (kid == "" || k.KeyID == kid) && (k.Algorithm == "" || k.Algorithm == alg) {
			keys = append(keys, k)
		}
	}
	return keys
}

// Source has an issuer's keys. Requests whose keys are known never wait: keys that become old
// are fetched beside them, and stay if that fails.
type Source struct {
	at  Location
	get func(context.Context) ([]byte, error)
	set atomic.Pointer[keySet]
	due atomic.Int64 // when the next fetch is, in nanoseconds since base; 0: at once

	base   time.Time
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	log     *slog.Logger
	began   time.Time     // of the latest fetch
	ended   chan struct{} // closed when it ends; nil: none is under way
	failing bool
	closed  bool
	fetches sync.WaitGroup
}

// NewSource makes the source of the keys at a location. It fetches nothing yet.
func NewSource(at Location) *Source { return newSource(at, at.fetch) }

func newSource(at Location, get func(context.Context) ([]byte, error)) *Source {
	s := &Source{at: at, get: get, log: discard, base: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// At returns where the keys are.
func (s *Source) At() Location { return s.at }

// Start fetches the keys in the background, and from now on logs failures of fetches.
func (s *Source) Start(log *slog.Logger) {
	s.mu.Lock()
	s.log = log
	s.mu.Unlock()
	s.current(time.Now())
}

// Close ends fetches and waits for them.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.fetches.Wait()
}

// current returns the keys that are known, nil before the first ones. It has them fetched if
// they are old.
func (s *Source) current(now time.Time) *keySet {
	if int64(now.Sub(s.base)) >= s.due.Load() {
		s.fetch(now)
	}
	return s.set.Load()
}

// find returns the keys for a token, and the set that they belong to. If there are none, it waits
// for a fetch, unless the latest one has just been.
func (s *Source) find(issuer, kid, alg string, now time.Time) (*keySet, []jose.JSONWebKey, error) {
	set := s.current(now)
	if keys := set.find(kid, alg); len(keys) > 0 {
		return set, keys, nil
	}
	if ended := s.fetch(now); ended != nil {
		bound := time.NewTimer(findBound)
		defer bound.Stop()
		select {
		case <-ended:
		case <-bound.C:
		}
		set = s.set.Load()
	}
	if set == nil {
		return nil, nil, unavailable(issuer)
	}
	keys := set.find(kid, alg)
	if len(keys) == 0 {
		return nil, nil, refuse(unknownKey, "the token is signed with a key (kid, alg) that its issuer does not list")
	}
	return set, keys, nil
}

// fetch begins to fetch the keys, unless a fetch is under way or the latest one has just been.
// It returns what is closed when the one under way ends, nil if there is none.
func (s *Source) fetch(now time.Time) (ended <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil || s.closed:
		return s.ended
	case !s.began.IsZero() && now.Sub(s.began) < fetchAgain:
		return nil
	}
	s.began, s.ended = now, make(chan struct{})
	s.due.Store(int64(now.Sub(s.base) + fetchAgain))
	done := s.ended
	s.fetches.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, fetchBound)
		defer cancel()
		s.took(s.ask(ctx))
	})
	return done
}

// ask gets the keys and reads them, if they are others than those that are known.
func (s *Source) ask(ctx context.Context) (_ *keySet, err error) {
	defer infer.Catch(&err, s.panicked)
	text, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	if had := s.set.Load(); had != nil && bytes.Equal(had.text, text) {
		return had, nil
	}
	return parseKeys(text)
}

func (s *Source) panicked(p *infer.Panic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Error("panic while reading the keys of an issuer of tokens", "url", s.at.name(), "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
}

// took ends a fetch.
func (s *Source) took(set *keySet, err error) {
	had := s.set.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
	case err != nil:
		if !s.failing { // once until it succeeds
			s.log.Warn("the keys of an issuer of tokens cannot be fetched; those that are known stay", "url", s.at.name(), "error", clip(err.Error()))
		}
		s.failing = true
	default:
		if s.failing || had != set {
			s.log.Info("keys of an issuer of tokens fetched", "url", s.at.name(), "keys", len(set.keys))
		}
		s.failing = false
		s.set.Store(set)
		s.due.Store(int64(s.began.Sub(s.base) + refresh))
	}
	close(s.ended)
	s.ended = nil
}

// clip shortens an error, which may have what a server has answered.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
