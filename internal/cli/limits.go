package cli

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/config"
	"weir/internal/config/keyfile"
	"weir/internal/tenancy"
	"weir/internal/tenancy/shared"
)

// limitsView is a grant of the keys file as the admin listener shows it: its limits in force,
// and what is used of them.
type limitsView struct {
	Name   string         `json:"name"`
	Kind   string         `json:"kind"` // key, certificate, tenant or issuer
	Tenant string         `json:"tenant"`
	Band   string         `json:"band"`
	Share  float64        `json:"share"`
	Models []string       `json:"models,omitzero"` // nil: all
	Limits tenancy.Limits `json:"limits"`
	Used   tenancy.Usage  `json:"used"`
}

// limitsViews is the answer to a request for all of them.
type limitsViews struct {
	Callers []limitsView `json:"callers"`
	// Shared is where several gateways count the limits together.
	Shared *shared.View `json:"shared,omitzero"`
}

// limitsOutcome is the answer to a change.
type limitsOutcome struct {
	Steps  []config.Step `json:"changes"`
	Caller limitsView    `json:"caller"`
}

// limitRoutes are the paths of the admin listener that show and set limits.
// docs/admin.openapi.json describes them.
func (p *process) limitRoutes() map[string]http.HandlerFunc {
	k := p.keys
	return map[string]http.HandlerFunc{
		"GET /admin/limits": func(w http.ResponseWriter, r *http.Request) {
			all, err := k.limits(r.URL.Query().Get("tenant"))
			answer(w, limitsViews{all, k.sharedView()}, err)
		},
		"GET /admin/limits/{name}": func(w http.ResponseWriter, r *http.Request) {
			v, err := k.limitsOf(r.PathValue("name"))
			answer(w, v, err)
		},
		"PATCH /admin/limits/{name}": p.mayChange(func(w http.ResponseWriter, r *http.Request) {
			fields, err := limitsBody(r)
			if err != nil {
				writeRefusal(w, err)
				return
			}
			out, err := k.setLimits(r.PathValue("name"), fields, p.log, p.say)
			answer(w, out, err)
		}),
	}
}

// answer writes a view, or why there is none.
func answer(w http.ResponseWriter, view any, err error) {
	if err != nil {
		writeRefusal(w, err)
		return
	}
	writeView(w, view)
}

// errNoKeys is the answer of a gateway without --keys.
var errNoKeys = refused(codeUnknown, "there are no limits: this gateway knows no callers; start it with --keys FILE (weir keys add makes the file)")

// registry returns the callers that the gateway knows.
func (k *keys) registry() (*keyfile.Registry, error) {
	if k == nil || k.callers == nil {
		return nil, errNoKeys
	}
	return k.callers, nil
}

// limits returns all grants, or those of a tenant.
func (k *keys) limits(tenant string) ([]limitsView, error) {
	callers, err := k.registry()
	if err != nil {
		return nil, err
	}
	all := []limitsView{}
	now := time.Now()
	standings := callers.Standings()
	k.refresh(standings)
	for _, s := range standings {
		if tenant != "" && s.Caller.Tenant != tenant {
			continue
		}
		all = append(all, viewOfLimits(s, now))
	}
	return all, nil
}

// refresh has grants show what all gateways have used, where these count together.
func (k *keys) refresh(of []keyfile.Standing) {
	if k.shared == nil {
		return
	}
	var accounts []*tenancy.Account
	for _, s := range of {
		if s.Account != nil {
			accounts = append(accounts, s.Account)
		}
	}
	k.shared.Refresh(accounts)
}

// sharedView is the count of several gateways; nil if this one counts by itself.
func (k *keys) sharedView() *shared.View {
	if k.shared == nil {
		return nil
	}
	return new(k.shared.View())
}

func viewOfLimits(s keyfile.Standing, now time.Time) limitsView {
	account := s.Account
	if account == nil {
		account = tenancy.NewAccount(s.Limits, now) // nothing was used yet
	}
	return limitsView{Name: s.Name, Kind: s.Kind, Tenant: s.Caller.Tenant, Band: s.Caller.Band, Share: s.Caller.Share, Models: s.Caller.Models, Limits: s.Limits, Used: account.Usage(now)}
}

// limitsOf returns one grant.
func (k *keys) limitsOf(name string) (limitsView, error) {
	callers, err := k.registry()
	if err != nil {
		return limitsView{}, err
	}
	all := callers.Standings()
	i := slices.IndexFunc(all, func(s keyfile.Standing) bool { return s.Name == name })
	if i < 0 {
		return limitsView{}, refused(codeUnknown, "%w %q; weir limits lists the names", keyfile.ErrUnknown, name)
	}
	k.refresh(all[i : i+1])
	return viewOfLimits(all[i], time.Now()), nil
}

// setLimits changes the keys file and applies it, so that the file has what is in force.
func (k *keys) setLimits(name string, fields []keyfile.Field, log *slog.Logger, say func(format string, args ...any)) (limitsOutcome, error) {
	callers, err := k.registry()
	if err != nil {
		return limitsOutcome{}, err
	}
	steps, err := callers.Set(name, fields)
	switch {
	case errors.Is(err, keyfile.ErrUnknown):
		return limitsOutcome{}, refused(codeUnknown, "%w", err)
	case err != nil:
		return limitsOutcome{}, refused(codeConflict, "nothing has changed: limits are kept in the keys file, which cannot be changed here: %w. Change the file where it comes from; weir reads it again when it has changed", err)
	}
	k.watch.Took(k.files()...) // it was read just now
	for _, step := range steps {
		say("change    %s", step)
		log.Info("limits changed", "name", step.Name, "what", step.What)
	}
	of, err := k.limitsOf(name)
	return limitsOutcome{Steps: slices.Concat([]config.Step{}, steps), Caller: of}, err
}

// limitsBody reads the fields of a change: null takes a field out.
func limitsBody(r *http.Request) (fields []keyfile.Field, err error) {
	var body map[string]jsontext.Value
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	for _, name := range keyfile.Settable() {
		raw, there := body[name]
		if !there {
			continue
		}
		delete(body, name)
		f := keyfile.Field{Name: name}
		if f.Values, err = wordsOf(raw); err != nil {
			return nil, refused(codeInvalid, "%s: %w", name, err)
		}
		fields = append(fields, f)
	}
	for name := range body {
		fields = append(fields, keyfile.Field{Name: name}) // which CheckFields refuses
	}
	if len(fields) == 0 {
		return nil, refused(codeInvalid, `the body has no field; want one of those that weir limits set has, such as {"tokens_per_day": 100000}`)
	}
	if err := keyfile.CheckFields(fields); err != nil {
		return nil, refused(codeInvalid, "%w", err)
	}
	return fields, nil
}

// wordsOf returns a value of JSON in the words of a keys file; none of null.
func wordsOf(raw jsontext.Value) (words []string, err error) {
	switch raw.Kind() {
	case 'n':
		return nil, nil
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		return []string{s}, nil
	case '0':
		var n float64
		if err := json.Unmarshal(raw, &n); err != nil {
			return nil, err
		}
		return []string{strconv.FormatFloat(n, 'f', -1, 64)}, nil
	case '[':
		if err := json.Unmarshal(raw, &words); err != nil || len(words) == 0 {
			return nil, errors.New("want a list of names, or null for all")
		}
		return words, nil
	}
	return nil, errors.New("want a number, a text, a list of texts, or null for none")
}
