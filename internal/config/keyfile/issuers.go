package keyfile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"weir/internal/config"
	"weir/internal/config/jwt"
	"weir/internal/tenancy"
)

// issuer is an entry of the section issuers: whose tokens are taken, and what their callers may
// use.
type issuer struct {
	config                              jwt.Config
	tenantClaim, modelsClaim, bandClaim string
	tenant                              string         // of tokens without the claim
	grant                               Key            // of tenants that have no entry
	tenants                             map[string]Key // by their names
}

var (
	issuerFields = append([]string{"issuer", "audience", "jwks", "ca", "algorithms", "leeway", "tenant_claim", "models_claim", "band_claim", "tenants"}, grantFields...)
	tenantFields = slices.DeleteFunc(slices.Clone(grantFields), func(name string) bool { return name == "tenant" })
)

const (
	// maxSubject bounds the subject of a token, in bytes; OpenID Connect allows 255.
	maxSubject = 255
	// mostLeeway bounds by how much clocks may differ.
	defaultLeeway, mostLeeway = 30 * time.Second, 5 * time.Minute
)

// issuer reads an entry of the section issuers.
func (f *File) issuer(name string, e *config.Entry) error {
	if e.Section == nil {
		return fmt.Errorf("line %d: %s: want fields, such as issuer and audience", e.Line, name)
	}
	if err := e.Section.Check(issuerFields); err != nil {
		return fmt.Errorf("%w (of %s)", err, name)
	}
	i := &issuer{config: jwt.Config{Name: name, Algorithms: jwt.Algorithms, Leeway: defaultLeeway}, tenants: map[string]Key{},
		grant: Key{Caller: &tenancy.Caller{Key: name, Tenant: name, Band: tenancy.Anyone.Band, Share: 1}}}
	var tenants *config.Entry
	for at := range e.Section.Entries {
		field := &e.Section.Entries[at]
		if field.Key == "tenants" {
			tenants = field
			continue
		}
		if err := i.set(field); err != nil {
			return fmt.Errorf("line %d: %s: %s: %w", field.Line, name, field.Key, err)
		}
	}
	if err := i.whole(); err != nil {
		return fmt.Errorf("line %d: %s: %w", e.Line, name, err)
	}
	for other, had := range f.issuers {
		if had.config.URL == i.config.URL {
			return fmt.Errorf("line %d: %s and %s have the same issuer; give it one entry, with a list of audiences", e.Line, other, name)
		}
	}
	f.issuers[name] = i
	return i.readTenants(tenants)
}

// set reads a field other than tenants.
func (i *issuer) set(e *config.Entry) error {
	lists := map[string]*[]string{"audience": &i.config.Audiences, "algorithms": &i.config.Algorithms}
	texts := map[string]*string{"issuer": &i.config.URL, "jwks": &i.config.Keys.JWKS, "ca": &i.config.Keys.CA,
		"tenant_claim": &i.tenantClaim, "models_claim": &i.modelsClaim, "band_claim": &i.bandClaim}
	list, text := lists[e.Key], texts[e.Key]
	switch {
	case list == nil && text == nil && e.Key != "leeway":
		if e.Key == "tenant" && len(e.Values) == 1 {
			i.tenant = e.Values[0]
		}
		return i.grant.set(e)
	case e.Section != nil || len(e.Values) == 0 || list == nil && len(e.Values) > 1 || slices.Contains(e.Values, ""):
		return fmt.Errorf("want a value")
	case list != nil:
		*list = e.Values
		return nil
	case text != nil:
		*text = e.Values[0]
		return nil
	}
	var err error
	if i.config.Leeway, err = time.ParseDuration(e.Values[0]); err != nil || i.config.Leeway < 0 || i.config.Leeway > mostLeeway {
		return fmt.Errorf("want a time up to %s, such as 30s: by how much the issuer's clock may differ from this machine's", mostLeeway)
	}
	return nil
}

// whole reports what is wrong with the fields together.
func (i *issuer) whole() error {
	c := &i.config
	switch {
	case c.URL == "":
		return fmt.Errorf("it has no field issuer: want what the tokens have as iss, such as https://login.example.com")
	case len(c.Audiences) == 0:
		return fmt.Errorf("it has no field audience: want what the tokens for this gateway have as aud; without it, tokens for any other service would be taken")
	case c.Keys.JWKS == "" && !jwt.Safe(c.URL):
		return fmt.Errorf("issuer: its keys cannot be found by OpenID Connect discovery, as it is no https:// URL; give their place as jwks")
	case c.Keys.JWKS != "" && !jwt.Safe(c.Keys.JWKS):
		return fmt.Errorf("jwks: want an https:// URL, or http:// on this machine: who can change the keys on their way can issue tokens")
	}
	if c.Keys.JWKS == "" {
		c.Keys.Issuer = c.URL
	}
	for _, alg := range c.Algorithms {
		if !slices.Contains(jwt.Algorithms, alg) {
			return fmt.Errorf("algorithms: %.20q is not taken; want any of %s (none is no signature, and with HS256 whoever verifies tokens could issue them)", alg, strings.Join(jwt.Algorithms, ", "))
		}
	}
	return nil
}

// readTenants reads the section tenants.
func (i *issuer) readTenants(e *config.Entry) error {
	if e == nil {
		return nil
	}
	if i.tenantClaim == "" || e.Section == nil {
		return fmt.Errorf("line %d: %s: tenants: want the names of tenants, each with fields such as share, and the field tenant_claim beside", e.Line, i.config.Name)
	}
	for at := range e.Section.Entries {
		t := &e.Section.Entries[at]
		name := t.Key
		if err := checkName("tenants", name); err != nil {
			return fmt.Errorf("line %d: %s: %w", t.Line, i.config.Name, err)
		}
		if name == anyTenant {
			return fmt.Errorf("line %d: %s: tenants: %s cannot be the name of a tenant; the limits of tenants without an entry are the issuer's own", t.Line, i.config.Name, name)
		}
		if t.Section == nil {
			return fmt.Errorf("line %d: %s: tenants: %s: want fields, such as share", t.Line, i.config.Name, name)
		}
		if err := t.Section.Check(tenantFields); err != nil {
			return fmt.Errorf("%w (of tenant %s)", err, name)
		}
		of := *i.grant.Caller
		k := Key{Caller: &of, limits: i.grant.limits}
		for n := range t.Section.Entries {
			field := &t.Section.Entries[n]
			if err := k.set(field); err != nil {
				return fmt.Errorf("line %d: %s: tenant %s: %s: %w", field.Line, i.config.Name, name, field.Key, err)
			}
		}
		i.tenants[name] = k
	}
	return nil
}

// of returns what a tenant may use.
func (i *issuer) of(tenant string) Key {
	if k, ok := i.tenants[tenant]; ok {
		return k
	}
	return i.grant
}

// caller makes the caller of a token, without its account. Errors name claims and nothing that
// the token has in them.
func (i *issuer) caller(c *jwt.Claims) (*tenancy.Caller, error) {
	tenant := i.grant.Caller.Tenant
	if i.tenantClaim != "" {
		text, err := textOf(c, i.tenantClaim, tenancy.MaxName)
		switch {
		case err != nil:
			return nil, err
		case text != "":
			tenant = text
		case i.tenant == "":
			return nil, fmt.Errorf("it has no claim %s, which names the tenant here", i.tenantClaim)
		}
	}
	caller := *i.of(tenant).Caller
	caller.Tenant = tenant
	subject, err := textOf(c, "sub", maxSubject)
	if err != nil {
		return nil, err
	}
	caller.Key = i.config.Name + ":" + subject
	if i.bandClaim != "" {
		band, err := textOf(c, i.bandClaim, tenancy.MaxName)
		if err != nil {
			return nil, err
		}
		if band != "" {
			caller.Band = band
		}
	}
	if i.modelsClaim != "" && c.Get(i.modelsClaim) != nil {
		may, err := listOf(c, i.modelsClaim)
		if err != nil {
			return nil, err
		}
		if caller.Models != nil {
			may = slices.DeleteFunc(may, func(m string) bool { return !slices.Contains(caller.Models, m) })
		}
		caller.Models = slices.Compact(slices.Sorted(slices.Values(may)))
		if caller.Models == nil { // nil would be all
			caller.Models = []string{}
		}
	}
	return &caller, nil
}

// textOf returns a claim that is a name, empty if there is none. A number stands for its digits.
func textOf(c *jwt.Claims, claim string, most int) (text string, err error) {
	switch v := c.Get(claim).(type) {
	case nil:
		return "", nil
	case string:
		text = v
	case float64:
		if v != math.Trunc(v) || math.Abs(v) >= 1<<53 {
			return "", fmt.Errorf("its claim %s is a number that is not whole; a name is wanted", claim)
		}
		text = fmt.Sprintf("%.0f", v)
	default:
		return "", fmt.Errorf("its claim %s is neither text nor a number; a name is wanted", claim)
	}
	switch {
	case len(text) > most:
		return "", fmt.Errorf("its claim %s is longer than %d bytes", claim, most)
	case !tenancy.Printable(text):
		return "", fmt.Errorf("its claim %s has characters that cannot be printed", claim)
	}
	return text, nil
}

// listOf returns a claim that is a list of names, or text that has them with spaces between.
func listOf(c *jwt.Claims, claim string) (names []string, err error) {
	switch v := c.Get(claim).(type) {
	case string:
		return strings.Fields(v), nil
	case []any:
		for _, one := range v {
			name, ok := one.(string)
			if !ok {
				return nil, fmt.Errorf("its claim %s has something that is not text", claim)
			}
			names = append(names, name)
		}
		return names, nil
	}
	return nil, fmt.Errorf("its claim %s is no list of names", claim)
}
