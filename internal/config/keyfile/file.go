package keyfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/tenancy"
)

// File is a keys file: who may ask, and what each may use. It holds hashes, never keys.
type File struct {
	keys    []Key
	certs   map[string]*Key    // by a name in a client's certificate
	issuers map[string]*issuer // of tokens, by their names in the file
	said    map[string]bool    // the sections that the file has, also without entries
}

// Key is a key of a file.
type Key struct {
	Hash   Hash
	Caller *tenancy.Caller
	Role   Role // of an operator's
	limits tenancy.Limits
}

// fields of an entry of a keys file, and where they may stand.
var (
	limitFields = []string{"max_requests", "requests_per_minute", "tokens_per_minute", "tokens_per_day", "max_prompt_tokens", "max_output_tokens"}
	grantFields = append([]string{"tenant", "models", "band", "share"}, limitFields...)
	keyFields   = append([]string{"hash"}, grantFields...)
	adminFields = []string{"hash", "role"}
)

// rate.Limiter takes a burst of type int; no real limit comes near.
const maxLimit = 1 << 40

// ParseFile reads a keys file of callers, or of operators. Errors name the line, and never
// what may be a key.
func ParseFile(data []byte, admin bool) (*File, error) {
	f, err := parse(data, admin)
	if err != nil {
		return nil, errors.New(like.ReplaceAllString(err.Error(), "$1(hidden)"))
	}
	return f, nil
}

func parse(data []byte, admin bool) (*File, error) {
	root, err := config.ParseSections(data)
	if err != nil {
		return nil, err
	}
	sections := []string{"keys", "certificates", "issuers"}
	if admin {
		sections = sections[:1]
	}
	if err := root.Check(sections); err != nil {
		return nil, err
	}
	f := &File{certs: map[string]*Key{}, issuers: map[string]*issuer{}, said: map[string]bool{}}
	for _, section := range root.Entries {
		f.said[section.Key] = true
		if section.Section == nil {
			if len(section.Values) == 0 {
				continue
			}
			return nil, fmt.Errorf("line %d: %s: want a mapping of names", section.Line, section.Key)
		}
		f.keys = slices.Grow(f.keys, len(section.Section.Entries))
		for i := range section.Section.Entries {
			e := &section.Section.Entries[i]
			name := e.Key
			if err := checkName(section.Key, name); err != nil {
				return nil, fmt.Errorf("line %d: %w", e.Line, err)
			}
			if section.Key == "issuers" && strings.Contains(name, ":") {
				return nil, fmt.Errorf("line %d: issuers: the name %q has a colon, which parts it from a subject's or a tenant's", e.Line, name)
			}
			if err := f.entry(section.Key, name, e, admin); err != nil {
				return nil, err
			}
			e.Section = nil // the memory of many keys is free before all are read
		}
	}
	return f, f.distinct()
}

// like is what looks like a key.
var like = regexp.MustCompile(`(weir_|sk-)[A-Za-z0-9_-]+`)

// checkName refuses names that cannot be shown, and those that look like keys. A name in a
// certificate may be longer than others.
func checkName(what, name string) error {
	if strings.HasPrefix(name, Prefix) || strings.HasPrefix(name, "sk-") {
		return fmt.Errorf("%s: a name looks like a key itself; the file holds names and hashes only", what)
	}
	if err := tenancy.CheckName(name); err != nil && (what != "certificates" || name == "" || !tenancy.Printable(name)) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// entry reads an entry of a section.
func (f *File) entry(section, name string, e *config.Entry, admin bool) error {
	if section == "issuers" {
		return f.issuer(name, e)
	}
	if e.Section == nil {
		if len(e.Values) > 0 {
			return fmt.Errorf("line %d: %s: want fields, such as hash; a key in plain is never in the file: make one with weir keys add", e.Line, name)
		}
		e.Section = &config.Section{Line: e.Line}
	}
	known := grantFields
	switch {
	case admin:
		known = adminFields
	case section == "keys":
		known = keyFields
	}
	if of := e.Section.Find("key"); of != nil {
		return fmt.Errorf("line %d: %s: key: the file holds hashes only, and this key must be taken for known; make another with weir keys add", of.Line, name)
	}
	if err := e.Section.Check(known); err != nil {
		return fmt.Errorf("%w (of %s)", err, name)
	}
	k := Key{Caller: &tenancy.Caller{Key: name, Tenant: name, Band: tenancy.Anyone.Band, Share: 1}}
	for i := range e.Section.Entries {
		field := &e.Section.Entries[i]
		if err := k.set(field); err != nil {
			return fmt.Errorf("line %d: %s: %s: %w", field.Line, name, field.Key, err)
		}
	}
	switch {
	case section == "certificates":
		k.Caller.Key = "certificate:" + name
		f.certs[name] = &k
		return nil
	case k.Hash == Hash{}:
		return fmt.Errorf("line %d: %s has no hash; make a key with weir keys add", e.Line, name)
	case admin && k.Role == NoRole:
		return fmt.Errorf("line %d: %s has no role; want role: read or role: operate", e.Line, name)
	}
	f.keys = append(f.keys, k)
	return nil
}

// set reads a field.
func (k *Key) set(e *config.Entry) (err error) {
	if e.Section != nil {
		return fmt.Errorf("want a value, not a mapping")
	}
	if e.Key == "models" {
		k.Caller.Models = slices.Compact(slices.Sorted(slices.Values(e.Values)))
		if len(k.Caller.Models) == 0 {
			return fmt.Errorf("the list is empty; leave it out to allow all models")
		}
		for _, name := range e.Values {
			if name == "" || !tenancy.Printable(name) {
				return fmt.Errorf("the name %q is empty or has characters that cannot be printed", name)
			}
		}
		return nil
	}
	if len(e.Values) != 1 {
		return fmt.Errorf("want one value")
	}
	value := e.Values[0]
	switch e.Key {
	case "hash":
		var ok bool
		if k.Hash, ok = parseHash(value); !ok {
			return fmt.Errorf("it is not %s and 64 hexadecimal digits. If it is the key itself, it must be taken for known now; make another with weir keys add", hashWord)
		}
	case "role":
		k.Role = map[string]Role{"read": Read, "operate": Operate}[value]
		if k.Role == NoRole {
			return fmt.Errorf("want read or operate")
		}
	case "tenant":
		k.Caller.Tenant, err = value, checkName("tenant", value)
	case "band":
		k.Caller.Band, err = value, checkName("band", value)
	case "share":
		if k.Caller.Share, err = strconv.ParseFloat(value, 64); err != nil || !(k.Caller.Share >= 1 && k.Caller.Share <= 1000) {
			return fmt.Errorf("want a weight from 1 to 1000")
		}
	default:
		n, bad := strconv.ParseInt(value, 10, 64)
		if bad != nil || n < 1 || n > maxLimit {
			return fmt.Errorf("want a whole number from 1 on; without the field there is no limit")
		}
		*limitOf(&k.limits, e.Key) = n
	}
	return err
}

// limitOf returns the limit of a field of limitFields.
func limitOf(l *tenancy.Limits, field string) *int64 {
	switch field {
	case "max_requests":
		return &l.Requests
	case "requests_per_minute":
		return &l.RequestsPerMinute
	case "tokens_per_minute":
		return &l.TokensPerMinute
	case "tokens_per_day":
		return &l.TokensPerDay
	case "max_prompt_tokens":
		return &l.PromptTokens
	}
	return &l.OutputTokens
}

// distinct refuses two names for one key: which of them asks could not be told. It refuses a
// key with a name that the callers of a certificate or a token have.
func (f *File) distinct() error {
	byHash := make(map[Hash]string, len(f.keys))
	for _, k := range f.keys {
		if of, _, ok := strings.Cut(k.Caller.Key, ":"); ok && (of == "certificate" || f.issuers[of] != nil) {
			return fmt.Errorf("keys: %s: the name begins as those of callers by %s; choose another", k.Caller.Key, map[bool]string{true: "certificate", false: "the issuer's tokens"}[of == "certificate"])
		}
		if other, twice := byHash[k.Hash]; twice {
			return fmt.Errorf("keys: %s and %s have the same hash; a key has one name", other, k.Caller.Key)
		}
		byHash[k.Hash] = k.Caller.Key
	}
	return nil
}

// ReadFile reads a keys file by its path.
func ReadFile(path string, admin bool) (*File, error) {
	data, err := disk.Read(path, disk.MaxKeys)
	if err != nil {
		return nil, err
	}
	f, err := ParseFile(data, admin)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ReadAgain reads a keys file in whose place had is in force. A section with nothing where there was
// something is an error, unless the file has it: its writer may have come no further yet, or its
// disk be full.
func ReadAgain(path string, admin bool, had *File) (*File, error) {
	f, err := ReadFile(path, admin)
	if err != nil || had == nil {
		return f, err
	}
	for _, section := range []struct {
		name     string
		had, has int
	}{{"keys", len(had.keys), len(f.keys)}, {"certificates", len(had.certs), len(f.certs)}, {"issuers", len(had.issuers), len(f.issuers)}} {
		if section.had > 0 && section.has == 0 && !f.said[section.name] {
			return nil, fmt.Errorf("%s: it has no %s any more, and there were %d: write \"%s: {}\" if there are to be none", path, section.name, section.had, section.name)
		}
	}
	return f, nil
}

// Keys returns the keys of the file in its order.
func (f *File) Keys() []Key { return f.keys }

// Has reports whether there is a key of that name.
func (f *File) Has(name string) bool {
	return slices.ContainsFunc(f.keys, func(k Key) bool { return k.Caller.Key == name })
}

// Ring returns the keys of the file, to be looked up.
func (f *File) Ring() *Ring {
	r := &Ring{byHash: make(map[Hash]*entry, len(f.keys))}
	for _, k := range f.keys {
		r.byHash[k.Hash] = &entry{k.Hash, k.Caller, k.Role}
	}
	return r
}

// Limits returns the limits of the key's account. Its caller has the account only in a Registry.
func (k *Key) Limits() tenancy.Limits { return k.limits }

// holders goes through the keys and certificates of the file.
func (f *File) holders(yield func(*Key) bool) {
	for _, k := range f.certs {
		if !yield(k) {
			return
		}
	}
	for i := range f.keys {
		if !yield(&f.keys[i]) {
			return
		}
	}
}
