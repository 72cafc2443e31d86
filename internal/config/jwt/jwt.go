// Package jwt finds the callers of requests by signed tokens (JWT), by issuer, audience, time
// and signature. The issuers' keys are fetched, within bounds, and rotate; tokens that were
// verified are remembered by hashes until they expire.
package jwt

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"hash/maphash"
	"strings"
	"time"
	"unsafe"

	"github.com/maypok86/otter/v2"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

const (
	// maxToken bounds a token, in bytes. Providers that list groups in tokens reach some 8 KB.
	maxToken = 16 << 10
	// mostVerified bounds the tokens that are remembered.
	mostVerified = 10_000
)

// The reasons of refusals, as callers see them: which check failed. No refusal has anything of
// the token.
const (
	malformed    = "token_malformed"
	wrongIssuer  = "token_issuer"
	wrongAlg     = "token_algorithm"
	unknownKey   = "token_key"
	badSignature = "token_signature"
	wrongAud     = "token_audience"
	expired      = "token_expired"
	early        = "token_not_yet_valid"
	badClaim     = "token_claim"
)

func refuse(reason, format string, args ...any) *infer.Error {
	err := infer.Errorf(infer.CodeUnauthorized, format, args...)
	err.Reason = reason
	return err
}

// Like reports whether what a request presents has the form of a token rather than of a key:
// a JSON object in base64url, and two dots.
func Like(presented string) bool {
	return strings.HasPrefix(presented, "eyJ") && strings.Count(presented, ".") == 2
}

// Issuers finds callers by the tokens of some issuers. It does not change.
type Issuers struct {
	byURL    map[string]*Issuer
	verified *otter.Cache[mark, *verified]
	seed     maphash.Seed // of marks
}

// mark tells tokens that were verified apart, at a small part of the cost of a SHA-256 of all of
// a token. Who presents the signature of a token that was verified has that token: nobody can
// make or guess one without the issuer's key. So a SHA-256 of the signature is enough to tell
// who asks, and a keyed hash of all bytes, with a seed of this process, is for other bytes with
// that signature, which are then verified, and refused.
type mark struct {
	signature [sha256.Size]byte
	all       uint64
}

func (s *Issuers) markOf(token string) mark {
	signature := token[strings.LastIndexByte(token, '.')+1:]
	return mark{sha256.Sum256(unsafe.Slice(unsafe.StringData(signature), len(signature))), maphash.String(s.seed, token)} // which only read it
}

// verified is a token that was verified.
type verified struct {
	caller *tenancy.Caller
	issuer *Issuer
	keys   *keySet   // that verified it; others may not have its key
	expiry int64     // by the wall clock, in Unix seconds, with the leeway
	until  time.Time // by the monotonic clock: setting the wall clock back prolongs nothing
}

// NewIssuers makes the Issuers of a list, each with a URL of its own.
func NewIssuers(list []*Issuer) *Issuers {
	s := &Issuers{byURL: map[string]*Issuer{}, seed: maphash.MakeSeed()}
	for _, i := range list {
		s.byURL[i.config.URL] = i
	}
	s.verified = otter.Must(&otter.Options[mark, *verified]{
		MaximumSize: mostVerified,
		Executor:    func(run func()) { run() }, // maintenance belongs to the request that caused it
	})
	return s
}

// Caller returns the caller of a token. It waits, for a bounded time, only if the token names a
// key that is not known yet.
func (s *Issuers) Caller(token string) (*tenancy.Caller, error) {
	return s.caller(token, time.Now(), time.Now().Unix())
}

// caller is Caller at a time of the monotonic clock and one of the wall clock.
func (s *Issuers) caller(token string, now time.Time, wall int64) (*tenancy.Caller, error) {
	if len(token) > maxToken {
		return nil, refuse(malformed, "the token is longer than %d bytes", maxToken)
	}
	key := s.markOf(token)
	if v, ok := s.verified.GetIfPresent(key); ok {
		if wall < v.expiry && now.Before(v.until) && v.issuer.source.current(now) == v.keys {
			return v.caller, nil
		}
		s.verified.Invalidate(key)
	}
	issuer, err := s.issuerOf(token)
	if err != nil {
		return nil, err
	}
	v, err := issuer.verify(token, now, wall)
	if err != nil {
		return nil, err
	}
	s.verified.Set(key, v)
	return v.caller, nil
}

// Forget forgets which tokens were verified.
func (s *Issuers) Forget() { s.verified.InvalidateAll() }

// issuerOf returns the issuer that a token names. Nothing of the token is verified yet.
func (s *Issuers) issuerOf(token string) (*Issuer, error) {
	head, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	var header struct {
		Alg string `json:"alg"`
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if !decode(head, &header) || !decode(payload, &claims) {
		return nil, refuse(malformed, "the token is no JWT: want three parts in base64url, the first two of which are JSON objects")
	}
	issuer := s.byURL[claims.Issuer]
	if issuer == nil {
		return nil, refuse(wrongIssuer, "the issuer of the token (iss) is not one of this gateway")
	}
	if !issuer.takes(header.Alg) {
		return nil, refuse(wrongAlg, "the token is not signed with an algorithm that this gateway takes of issuer %s (%s)", issuer.config.Name, strings.Join(issuer.config.Algorithms, ", "))
	}
	return issuer, nil
}

func decode(part string, v any) bool {
	data, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && json.Unmarshal(data, v) == nil
}
