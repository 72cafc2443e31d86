package cli

import (
	"fmt"
	"slices"

	"weir/internal/config"
	"weir/internal/tenancy"
)

// byKeys is the isolation that follows from whether there are keys.
const byKeys = "auto"

// isolation says whose requests share the caches of engines, of models that have no isolation
// of their own.
func (f *gatewayFlags) isolation() tenancy.Isolation {
	if f.Isolation == byKeys {
		if f.identifies() && !f.letsSalts() {
			return tenancy.ByTenant
		}
		return tenancy.Shared
	}
	is, _ := tenancy.ParseIsolation(f.Isolation) // the flag takes only what this reads
	return is
}

// checkIsolation refuses settings by which callers are not kept apart although they are meant
// to be. model is that of --model, or empty for all.
func (f *gatewayFlags) checkIsolation(is tenancy.Isolation, model string) error {
	what := fmt.Sprintf("--isolation %s", is)
	if model != "" {
		what = fmt.Sprintf("--model %s,isolation=%s", model, is)
	}
	if is == tenancy.Shared {
		return nil
	}
	if f.letsSalts() {
		return wrongf("%s: --allow-field cache_salt or extra_key lets a caller choose whose cache it shares; leave it out: weir takes cache_salt itself where callers are isolated, and hashes it into theirs", what)
	}
	return nil
}

// letsSalts reports whether callers' own salts pass as they came.
func (f *gatewayFlags) letsSalts() bool {
	return slices.Contains(f.AllowField, "cache_salt") || slices.Contains(f.AllowField, "extra_key")
}

// checkIsolations is checkIsolation of all models, of those without an isolation of their own
// together.
func (f *gatewayFlags) checkIsolations(models []config.Model) error {
	err := f.checkIsolation(f.isolation(), "")
	for _, m := range models {
		if err == nil && m.Isolation != nil {
			err = f.checkIsolation(*m.Isolation, m.Name)
		}
	}
	return err
}
