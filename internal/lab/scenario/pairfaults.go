//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/ports"
	"weir/internal/workload/content"
)

// Faults of pairs: two prefill and two decode engines under some streams, one of which fails.
const (
	pairStreams = 48
	pairWarm    = 2 * time.Second
	pairLasts   = 8 * time.Second
	// pairBound is --prefill-timeout and --transfer-timeout: what shows nothing is known to
	// hang then.
	pairBound = 3 * time.Second
	// tellsWithin is how long after a fault could be known its request ends, or is answered by
	// another pair.
	tellsWithin = 2 * time.Second
	// The rest of a request must be gone within restsWithin, except an SGLang decode half:
	// its abort waits for KV that may still be written.
	restsWithin, deferral = 5 * time.Second, 30 * time.Second
	pairLease             = 2 * time.Second
)

// pairing is how engines of a kind serve halves.
type pairing struct {
	prefill, decode []string // flags
	port            string   // the flag of the port where a prefill engine's other halves find it
	decodePort      bool     // a decode engine has one, too
	roles           bool     // weir is told them
	deferred        bool     // see deferral
	noRank, kept    bool     // see pairFault
}

// pairKinds are the kinds of pairs.
func pairKinds() []faultKind {
	role := func(of string) []string { return []string{"--role", of} }
	sglang := pairing{prefill: role("prefill"), decode: role("decode"), port: "--disaggregation-bootstrap-port", deferred: true}
	vllm := func(connector string) *pairing {
		config := func(role string) []string {
			return []string{"--kv-transfer-config", fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_connector_extra_config":{"kv_lease_duration":%v}}`, connector, role, pairLease.Seconds())}
		}
		return &pairing{prefill: config("kv_producer"), decode: config("kv_consumer"), port: "--nixl-side-channel-port", decodePort: true, roles: true, noRank: true, kept: true}
	}
	return []faultKind{
		{"sglang-pair", "sglang", "sglang=http://%s", &sglang},
		{"sglang-openai-pair", "sglang", "openai=http://%s", &sglang},
		{"vllm-pull", "vllm", "openai=http://%s", vllm("NixlConnector")},
		{"vllm-push", "vllm", "openai=http://%s", vllm("NixlPushConnector")},
		{"vllm-ids-pull", "vllm", "vllm=http://%s", vllm("NixlConnector")},
		{"vllm-ids-push", "vllm", "vllm=http://%s", vllm("NixlPushConnector")},
	}
}

// pairFault is one way in which one engine of a pair, or the link between them, fails.
type pairFault struct {
	name, what string
	decode     bool   // it is the decode engine's; otherwise the prefill engine's
	word       string // the engine's fault; empty: it is stopped
	dies       bool
	hangs      bool // nothing shows it before a bound
	// between reports whether neither engine fails: each works alone, and its probe
	// succeeds. An engine that is avoided because of it is tried with a request again after
	// 10 s, 20 s and so on.
	between bool
	// ranks reports whether it needs wires that name them, evicts that the engines notice that a
	// page was taken.
	ranks, evicts bool
	// control has weir wait for an hour: the fault must be seen to matter.
	control bool
}

func allPairFaults() []pairFault {
	return []pairFault{
		{name: "unmet", what: "the two halves never hear of each other", word: "unmet", hangs: true, between: true},
		{name: "stuck", what: "the KV is never transferred", word: "stuck", hangs: true, between: true},
		{name: "wrong rank", what: "the prefill half is at another rank than the decode half looks for", word: "misrank", hangs: true, between: true, ranks: true},
		{name: "evicted", what: "the KV is gone as soon as it is there", word: "evict", evicts: true},
		{name: "prefill fails", what: "500 from the prefill engine while the decode engine waits", word: "fail"},
		{name: "prefill killed before", what: "it ends when it has a request", word: "die,stage=bootstrap", dies: true},
		{name: "prefill killed during", what: "it ends before it computes", word: "die,stage=prefill", dies: true},
		{name: "prefill killed after", what: "it ends when it has computed, before the KV was fetched", word: "die,stage=transfer", dies: true},
		{name: "decode killed before", what: "it ends when it has a request", decode: true, word: "die,stage=bootstrap", dies: true},
		{name: "decode killed during", what: "it ends when it is to fetch the KV", decode: true, word: "die,stage=transfer", dies: true},
		{name: "decode killed after", what: "it ends when it has the KV", decode: true, word: "die,stage=decode", dies: true},
		{name: "prefill wedged", what: "the prefill engine's loop stands still, /health says 200", word: "wedge", hangs: true},
		{name: "prefill stopped", what: "SIGSTOP of the prefill engine", hangs: true},
		{name: "stuck for ever", what: "the control: the KV is never transferred, and weir waits for an hour", word: "stuck", hangs: true, control: true},
	}
}

// of reports whether a kind of pair has the fault.
func (f *pairFault) of(p *pairing) bool { return (!f.ranks || !p.noRank) && (!f.evicts || !p.kept) }

// knowable is how long after its request came to the engines the fault may be known.
func (f *pairFault) knowable(p *pairing) time.Duration {
	if f.hangs || f.dies && p.kept { // nobody tells a decode engine of vLLM's that its partner is gone
		return pairBound
	}
	return 0
}

// startPairBed starts two prefill and two decode engines and a gateway; the first one has
// the role that must fail. On failure the result contains what was started.
func (r *runner) startPairBed(ctx context.Context, k faultKind, f *pairFault) (*faultBed, error) {
	b := &faultBed{environment: r.environment}
	const engines = 4
	bound := pairBound
	if f.control {
		bound = time.Hour
	}
	serve := []string{"--policy", "round-robin", "--prefill-timeout", bound.String(), "--transfer-timeout", bound.String()}
	for i := range engines {
		role, flags := "prefill", k.pair.prefill
		if (i%2 == 0) == f.decode {
			role, flags = "decode", k.pair.decode
		}
		var e faultEngine
		other, err := ports.Free()
		for _, addr := range []*string{&e.addr, &e.admin} {
			if err == nil {
				*addr, err = ports.Free()
			}
		}
		if err != nil {
			return b, err
		}
		e.args = append([]string{r.options.Binary, "engine", "--wire", k.wire + "=" + e.addr, "--admin-listen", e.admin, "--cost", "constant",
			"--prefill-cost", faultPrefill.String(), "--decode-cost", faultDecode.String(), "--max-total-tokens", "262144"}, flags...)
		if role == "prefill" || k.pair.decodePort {
			e.args = append(e.args, k.pair.port, other[strings.LastIndexByte(other, ':')+1:])
		}
		b.engines = append(b.engines, &e)
		if err := b.start(ctx, i); err != nil {
			return b, err
		}
		spec := fmt.Sprintf(k.spec, e.addr) + ",name=" + engineName(i)
		if k.pair.roles {
			spec += ",role=" + role
		}
		serve = append(serve, "--engine", spec)
	}
	return b, r.startFaultGateway(ctx, b, serve, nil)
}

// pairCell runs one fault of one kind of pair.
func (r *runner) pairCell(ctx context.Context, k faultKind, f pairFault, words *content.Words) (x Faulted) {
	x = newFaulted(k, f.name, f.what, false)
	x.Pair, x.Between, x.Control, x.Rests = true, f.between, f.control, -1
	x.Knowable = f.knowable(k.pair).Seconds()
	b, err := r.startPairBed(ctx, k, &f)
	defer b.stop()
	b.rests = func(ctx context.Context) error { return x.rests(ctx, b, k.pair.deferred) }
	if err == nil {
		err = b.under(ctx, min(r.options.Streams, pairStreams), words, &x, func(ctx context.Context, w *watched) error {
			v := &victim{ctx: ctx, bed: b}
			if err := w.wait(ctx, pairWarm); err != nil {
				return err
			}
			began := w.begin()
			begin := func() error { return v.strike(f.word) }
			if f.word == "" {
				begin = func() error { return v.signal(syscall.SIGSTOP) }
			}
			if err := begin(); err != nil {
				return err
			}
			err := w.each(ctx, pairLasts, func(states []engineNow) bool {
				w.avoided(states[0], began)
				if x.Out < 0 && states[0].out() {
					x.Out = time.Since(began).Seconds()
				}
				return false
			})
			w.finish(began)
			switch {
			case err != nil:
			case f.dies:
				_ = b.engines[0].kill() // what is left of it
				err = b.start(ctx, 0)
			case f.word == "":
				err = v.signal(syscall.SIGCONT)
			default:
				err = v.strike()
			}
			return errors.Join(err, w.wait(ctx, backWithin))
		})
	}
	if err != nil {
		x.NotMeasured = strings.TrimSpace(err.Error())
	}
	return x
}

// rests waits until no engine has anything of any request, and no page of KV held for one.
func (x *Faulted) rests(ctx context.Context, b *faultBed, deferred bool) error {
	within := restsWithin
	if deferred {
		within += deferral
	}
	began := time.Now()
	for {
		left, err := b.left(ctx)
		if err != nil {
			return err
		}
		if x.Left = left; left == "" {
			x.Rests = time.Since(began).Seconds()
			return nil
		}
		if time.Since(began) > within {
			return nil
		}
		if err := lab.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// left returns what engines still have.
func (b *faultBed) left(ctx context.Context) (string, error) {
	var all []string
	for i, e := range b.engines {
		var s struct {
			Running, Waiting, Kept int
			KVUsed                 int `json:"kv_used_tokens"`
		}
		if err := lab.FetchJSON(ctx, "http://"+e.admin+"/admin/state", &s); err != nil {
			return "", err
		}
		if s.Running+s.Waiting+s.Kept+s.KVUsed > 0 {
			all = append(all, fmt.Sprintf("%s: %d running, %d waiting, %d kept, %d tokens of KV", engineName(i), s.Running, s.Waiting, s.Kept, s.KVUsed))
		}
	}
	return strings.Join(all, "; "), nil
}

// judgePairs checks the additional requirements of pairs.
func judgePairs(cells []Faulted) (verdicts []Verdict) {
	pairs, controls := 0, 0
	worst := [3]string{}
	var n [3]int
	bad := func(i int, x *Faulted, count int, what string) {
		if n[i] += count; worst[i] == "" && count > 0 {
			worst[i] = fmt.Sprintf(" (%s, %s: %s)", x.Kind, x.Fault, what)
		}
	}
	for i := range cells {
		switch x := &cells[i]; {
		case !x.Pair || x.NotMeasured != "" || x.Requests == 0:
		case x.Control:
			controls++
			bad(2, x, one(x.Overdue == 0), fmt.Sprintf("the longest wait was %s", after(x.Longest)))
		default:
			pairs++
			bad(0, x, x.Overdue, fmt.Sprintf("%d, the longest wait was %s", x.Overdue, after(x.Longest)))
			bad(1, x, one(x.Rests < 0), x.Left)
		}
	}
	if pairs > 0 {
		verdicts = append(verdicts,
			verdict(n[0] == 0, Missed, "requests of pairs that had neither a token nor an error within %v of when that could be known: %d%s", tellsWithin, n[0], worst[0]),
			verdict(n[1] == 0, Failed, "pairs of which something was left in an engine: %d%s", n[1], worst[1]))
	}
	if controls > 0 {
		verdicts = append(verdicts, verdict(n[2] == 0, Failed, "controls that wait for an hour, in which nothing was late: %d%s", n[2], worst[2]))
	}
	return verdicts
}

// pairHead are the columns of the pairs.
var pairHead = []string{"kind", "fault", "requests", "refused", "broken", "lost", "repeated", "overdue", "longest", "knowable", "avoided", "out", "back", "at rest", "wrongly out"}

func (x *Faulted) pairCells() []string {
	return []string{x.Kind, x.Fault, fmt.Sprint(x.Requests), fmt.Sprint(x.Refused), fmt.Sprint(x.Broken), fmt.Sprint(x.Lost), fmt.Sprint(x.Wrong), fmt.Sprint(x.Overdue),
		after(x.Longest), after(x.Knowable), after(x.Avoided), after(x.Out), after(x.Back), after(x.Rests), fmt.Sprint(x.WronglyOut)}
}

// allFaultKinds are the kinds of single engines and of pairs.
func allFaultKinds() []faultKind { return slices.Concat(faultKinds(), pairKinds()) }
