package jwt

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// Algorithms are the ones with which an issuer may sign: all have a public key. With a symmetric
// key, each verifier could also issue tokens, and the public key would pass for the secret.
var Algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// Config is what an issuer's tokens must have.
type Config struct {
	Name       string // the issuer's, in messages
	URL        string // the claim iss, exactly
	Audiences  []string
	Algorithms []string
	Leeway     time.Duration // by which clocks may differ
	Keys       Location
	// Grant makes the caller of a token that was verified.
	Grant func(*Claims) (*tenancy.Caller, error)
}

// Location is where an issuer's keys are. Two issuers with the same one may share them.
type Location struct {
	Issuer string // asked for the place of its keys (OpenID Connect discovery), unless JWKS is set
	JWKS   string // the URL of the keys
	CA     string // the file of the server's authorities, unless the system knows them
}

// Issuer verifies the tokens of one issuer.
type Issuer struct {
	config Config
	algs   []jose.SignatureAlgorithm
	source *Source
}

// NewIssuer makes the verifier of an issuer, whose keys come from a source.
func NewIssuer(c Config, from *Source) *Issuer {
	i := &Issuer{config: c, source: from}
	for _, a := range c.Algorithms {
		i.algs = append(i.algs, jose.SignatureAlgorithm(a))
	}
	return i
}

func (i *Issuer) takes(alg string) bool { return slices.Contains(i.config.Algorithms, alg) }

// verify verifies a token.
func (i *Issuer) verify(token string, now time.Time, wall int64) (*verified, error) {
	by := &signer{issuer: i, now: now}
	id, err := oidc.NewVerifier(i.config.URL, by, &oidc.Config{
		SupportedSigningAlgs: i.config.Algorithms,
		SkipClientIDCheck:    true, // there may be several audiences
		SkipExpiryCheck:      true, // it knows no leeway
	}).Verify(context.Background(), token)
	switch {
	case by.err != nil:
		return nil, by.err
	case err != nil:
		return nil, refuse(malformed, "the token is no JWT with the claims iss, aud and exp in their forms")
	case !slices.ContainsFunc(id.Audience, func(aud string) bool { return slices.Contains(i.config.Audiences, aud) }):
		return nil, refuse(wrongAud, "the token is for another audience (aud): it was not issued for this gateway")
	}
	claims := &Claims{Subject: id.Subject}
	var times struct {
		Expiry    *float64 `json:"exp"`
		NotBefore *float64 `json:"nbf"`
	}
	if errors.Join(id.Claims(&claims.all), id.Claims(&times)) != nil {
		return nil, refuse(malformed, "the claims exp and nbf of the token must be numbers")
	}
	if times.Expiry == nil {
		return nil, refuse(badClaim, "the token has no claim exp: this gateway takes only tokens that expire")
	}
	leeway := int64(i.config.Leeway / time.Second)
	expiry := seconds(*times.Expiry) + leeway
	if wall >= expiry {
		return nil, refuse(expired, "the token has expired (exp); get a new one")
	}
	if times.NotBefore != nil && wall+leeway < seconds(*times.NotBefore) {
		return nil, refuse(early, "the token is not valid yet (nbf); if it was issued just now, a clock is wrong")
	}
	caller, err := i.config.Grant(claims)
	if err != nil {
		return nil, refuse(badClaim, "the token of issuer %s: %v", i.config.Name, err)
	}
	left := min(expiry-wall, int64(maxLife/time.Second))
	return &verified{caller: caller, issuer: i, keys: by.keys, expiry: expiry, until: now.Add(time.Duration(left) * time.Second)}, nil
}

// maxLife bounds how long a token is remembered; then it is verified again.
const maxLife = 24 * time.Hour

// seconds is a time of a claim, within what can be calculated with.
func seconds(t float64) int64 {
	if math.IsNaN(t) {
		return 0
	}
	return int64(min(max(t, 0), 1<<40))
}

// Claims are the claims of a verified token.
type Claims struct {
	Subject string
	all     map[string]any
}

// Get returns a claim, nil if there is none.
func (c *Claims) Get(name string) any { return c.all[name] }

// signer verifies the signature of one token for go-oidc, and keeps why it could not.
type signer struct {
	issuer *Issuer
	now    time.Time
	keys   *keySet // that verified it
	err    error
}

var errSignature = errors.New("not verified")

// VerifySignature implements oidc.KeySet.
func (s *signer) VerifySignature(_ context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(token, s.issuer.algs)
	if err != nil || len(jws.Signatures) != 1 {
		s.err = refuse(malformed, "the token is no JWT with one signature")
		return nil, errSignature
	}
	header := jws.Signatures[0].Header
	var keys []jose.JSONWebKey
	if s.keys, keys, s.err = s.issuer.source.find(s.issuer.config.Name, header.KeyID, header.Algorithm, s.now); s.err != nil {
		return nil, errSignature
	}
	for i := range keys {
		if payload, err := jws.Verify(&keys[i]); err == nil {
			return payload, nil
		}
	}
	s.err = refuse(badSignature, "the signature of the token is wrong")
	return nil, errSignature
}

// unavailable is the error of a token that cannot be verified for want of the issuer's keys.
func unavailable(name string) *infer.Error {
	err := infer.Errorf(infer.CodeUnavailable, "the keys of issuer %s cannot be fetched now, so the token cannot be verified", name)
	err.RetryAfter = fetchAgain
	return err
}

// discard is the log of a source that has none.
var discard = slog.New(slog.DiscardHandler)
