package sim

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/internal/infer"
	"weir/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest has their form).
//
// A fresh engine, with a constant cost. A second engine in one script has a name, and "on NAME"
// goes back to it:
//
//	engine [NAME] [max_running=N] [max_queued=N] [step_tokens=N] [chunk=N]
//	       [prefill=DURATION] [decode=DURATION] [kv=TOKENS] [page=TOKENS] [dp=N]
//	       [priority=on] [threshold=N] [interval=N] [speculation=MEAN] [lora=NAME,...]
//	       [conservativeness=F] [bandwidth=BYTES/S] [latency=DURATION] [retraction=WORD]
//
// A request at the current time. Its prompt is a number of tokens, or pieces
// joined by +: WORD:N are N tokens that depend on the word and their place in the
// piece, a request's name is all its tokens so far, prompt and output:
//
//	submit NAME prompt=PROMPT max=N [min=N] [stall=N] [priority=N] [lora=NAME]
//	       [rank=N] [interval=N] [leg=prefill|decode] [await=yes] [patience=DURATION]
//	       [lease=DURATION] [fresh=yes]
//
// Commands that join legs, by hand:
//
//	meet NAME
//	offer NAME [cached=N] [spoiled=yes]
//	release NAME | expire NAME | break NAME
//	renew NAME for=DURATION
//
// or, of the engines p and d, by a Pair; key is what the legs of two requests have
// in common, and run then drives both:
//
//	pair
//	open NAME key=KEY prompt=PROMPT max=N [legs=both|p|d] ...   as submit
//
// The rest:
//
//	abort NAME
//	retract n=N
//	hinder [rank=N] [prefill=no] [drag=F]   without any of these nothing hinders it
//	flush
//	run for=DURATION       advance, print each step
//	follows NAME           how many words of a request do not follow from the one before
//	counts                 the totals, without those that are 0
//	loads                  what each rank holds
//	share                  of what running requests may still generate, what admission keeps free
//	quiet for=DURATION     advance, print nothing
func TestScripts(t *testing.T) {
	scripttest.Files(t, runScript)
}

// runScript returns the script with its output replaced by what it prints now.
func runScript(t *testing.T, text string) string {
	s := &script{t: t}
	return scripttest.Run(text, &s.out, s.command)
}

type script struct {
	t       *testing.T
	engines map[string]*scriptEngine
	on      *scriptEngine
	tokens  map[string][]uint32 // by request, prompt and output
	pair    *Pair
	out     strings.Builder
}

type scriptEngine struct {
	name  string
	core  *Core
	now   int64
	names map[Ref]string
	refs  map[string]Ref
	owed  map[string]int // what the pages of those are known by that are owed their KV
}

// line is a command's name and arguments.
type line struct {
	t    *testing.T
	text string
	name string
	args map[string]string
}

func parseLine(t *testing.T, text string) (string, *line) {
	words := strings.Fields(text)
	l := &line{t: t, text: text, args: map[string]string{}}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			l.args[k] = v
		} else {
			l.name = w
		}
	}
	return words[0], l
}

func (l *line) word(k string) string {
	v := l.args[k]
	delete(l.args, k)
	return v
}

func (l *line) has(k string) bool { _, ok := l.args[k]; return ok }

func (l *line) float(k string) float64 {
	v := l.word(k)
	if v == "" {
		return 0
	}
	x, err := strconv.ParseFloat(v, 64)
	if err != nil {
		l.t.Fatalf("%q: %v", l.text, err)
	}
	return x
}

func (l *line) num(k string) int { return int(l.float(k)) }

func (l *line) dur(k string) time.Duration {
	v := l.word(k)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		l.t.Fatalf("%q: %v", l.text, err)
	}
	return d
}

func (s *script) command(text string) {
	word, l := parseLine(s.t, text)
	switch word {
	case "engine":
		s.engine(l)
	case "on":
		s.on = s.engines[l.name]
	case "submit":
		s.submit(l)
	case "abort":
		how, ok := map[string]Aborted{"dropped": AbortedDropped, "last": AbortedLast, "finished": AbortedFinished}[l.word("prefill")]
		if ref := s.on.refs[l.name]; ok {
			s.on.core.AbortPrefill(s.on.now, ref, how, infer.Errorf(infer.CodeEngine, "aborted"))
		} else {
			s.on.core.Abort(s.on.now, ref)
		}
	case "meet":
		s.on.core.Meet(s.on.now, s.on.refs[l.name])
	case "offer":
		s.on.core.Offer(s.on.now, s.on.refs[l.name], Offer{Cached: l.num("cached"), Spoiled: l.word("spoiled") == "yes"})
	case "written":
		s.on.core.Written(s.on.now, s.on.owed[l.name])
	case "release":
		s.say("released: %v", s.on.core.Release(s.on.now, s.on.refs[l.name]))
	case "expire":
		s.say("expired: %v", s.on.core.Expire(s.on.now, s.on.refs[l.name]))
	case "break":
		s.on.core.Break(s.on.now, s.on.refs[l.name], infer.Errorf(infer.CodeEngine, "broken"))
	case "renew":
		s.on.core.Renew(s.on.now, s.on.refs[l.name], l.dur("for"))
	case "pair":
		s.pair = NewPair(s.engines["p"].core, s.engines["d"].core)
	case "open":
		s.open(l)
	case "retract":
		s.on.core.Retract(l.num("n"))
	case "hinder":
		h := Hindrance{NoPrefill: l.word("prefill") == "no", Drag: l.float("drag")}
		if l.has("rank") {
			h.Still = 1 << l.num("rank")
		}
		s.on.core.Hinder(s.on.now, h)
	case "flush":
		s.say("flushed: %v", s.on.core.FlushCache())
	case "run":
		s.run(s.on.now + int64(l.dur("for")))
	case "quiet":
		before := s.out.Len()
		s.run(s.on.now + int64(l.dur("for")))
		kept := s.out.String()[:before]
		s.out.Reset()
		s.out.WriteString(kept)
	case "counts":
		s.counts()
	case "follows":
		v := s.on.core.opts.Words.Verifier()
		for _, id := range s.tokens[l.name] {
			text, _ := s.on.core.opts.Words.Text(id)
			_, _ = v.WriteString(text)
		}
		_, _ = v.WriteString(" ")
		s.say("%d of %d words do not follow", v.Wrong(), v.Words())
	case "share":
		for i := range s.on.core.ranks {
			s.say("rank %d keeps %.3f free", i, s.on.core.ranks[i].share)
		}
	case "loads":
		for i, x := range s.on.core.Loads(nil) {
			legs := ""
			if x.Awaiting+x.Kept > 0 {
				legs = fmt.Sprintf("%d awaiting, %d kept, ", x.Awaiting, x.Kept)
			}
			if x.KVOwed > 0 {
				legs += fmt.Sprintf("kv %d owed, ", x.KVOwed)
			}
			s.say("rank %d: %s%d running, %d transferring, %d waiting with %d tokens, kv %d used %d idle of %d",
				i, legs, x.Running, x.Transferring, x.Waiting, x.QueuedTokens, x.KVUsed, x.KVIdle, x.KVTotal)
		}
	default:
		s.t.Fatalf("no command %q", text)
	}
	if len(l.args) > 0 {
		s.t.Fatalf("%q: no arguments %v", text, l.args)
	}
}

func (s *script) say(format string, args ...any) {
	fmt.Fprintf(&s.out, format+"\n", args...)
}

func (s *script) engine(l *line) {
	retraction, err := ParseRetraction(cmp.Or(l.word("retraction"), "recompute"))
	if err != nil {
		s.t.Fatal(err)
	}
	o := Options{
		MaxRunning: l.num("max_running"), MaxQueued: l.num("max_queued"), StepTokens: l.num("step_tokens"),
		ChunkedPrefill: l.num("chunk"), KVTokens: l.num("kv"), PageSize: l.num("page"), DPSize: l.num("dp"), Conservativeness: l.float("conservativeness"),
		PriorityScheduling: l.word("priority") == "on", StreamInterval: l.num("interval"), Speculation: l.float("speculation"),
		Retraction: retraction, Transfer: Transfer{BytesPerToken: 1000, Bandwidth: l.float("bandwidth"), Latency: l.dur("latency")},
		Cost: Constant{Prefill: l.dur("prefill"), Decode: l.dur("decode")},
	}
	if l.has("threshold") {
		o.PreemptionThreshold = new(l.num("threshold"))
	}
	if names := l.word("lora"); names != "" {
		o.LoRAs = strings.Split(names, ",")
	}
	if l.name == "" || s.engines == nil || s.pair != nil {
		s.pair = nil
		s.engines, s.tokens = map[string]*scriptEngine{}, map[string][]uint32{}
	}
	s.on = &scriptEngine{name: l.name, core: testCore(s.t, o), names: map[Ref]string{}, refs: map[string]Ref{}, owed: map[string]int{}}
	s.engines[l.name] = s.on
}

func (s *script) submit(l *line) {
	e := s.on
	p := s.params(l)
	r, err := e.core.Options().Prepare(p)
	if err == nil {
		var ref Ref
		if ref, err = e.core.Submit(e.now, e.now, r); err == nil {
			e.names[ref], e.refs[l.name] = l.name, ref
			s.tokens[l.name] = p.Prompt
		}
	}
	if err != nil {
		s.say("%v %s refused: %v", time.Duration(e.now), l.name, err)
	}
}

func (s *script) params(l *line) Params {
	_, stall := l.args["stall"]
	legs := map[string]Leg{"prefill": LegPrefill, "decode": LegDecode}
	pages := map[string]Pages{"overwritten": PagesOverwritten, "held": PagesHeld, "owed": PagesOwed}
	p := Params{
		Prompt: s.prompt(l.word("prompt")), MaxTokens: l.num("max"), MinTokens: l.num("min"), Stall: stall, StallAfter: l.num("stall"),
		Priority: l.num("priority"), LoRA: l.word("lora"), StreamInterval: l.num("interval"),
		Leg: legs[l.word("leg")], Await: l.word("await") == "yes", Patience: l.dur("patience"), Lease: l.dur("lease"), Fresh: l.word("fresh") == "yes", Pages: pages[l.word("pages")],
	}
	if l.has("rank") {
		p.DPRank = new(l.num("rank"))
	}
	return p
}

// open submits the legs of a pair.
func (s *script) open(l *line) {
	key, legs := l.word("key"), cmp.Or(l.word("legs"), "both")
	p := s.params(l)
	s.tokens[l.name] = p.Prompt
	for _, side := range []string{"p", "d"} {
		if legs != "both" && legs != side {
			continue
		}
		e, leg := s.engines[side], p
		submit := s.pair.SubmitDecode
		if leg.Leg = LegDecode; side == "p" {
			leg.Leg, leg.MaxTokens, leg.MinTokens = LegPrefill, 1, 0
			submit = s.pair.SubmitPrefill
		}
		r, err := e.core.Options().Prepare(leg)
		if err != nil {
			s.t.Fatal(err)
		}
		ref, err := submit(e.now, e.now, key, r)
		if err != nil {
			s.t.Fatal(err)
		}
		e.names[ref], e.refs[l.name] = l.name, ref
	}
}

func (s *script) prompt(text string) []uint32 {
	var ids []uint32
	for _, piece := range strings.Split(text, "+") {
		word, length, ok := strings.Cut(piece, ":")
		switch n, err := strconv.Atoi(piece); {
		case err == nil:
			ids = append(ids, make([]uint32, n)...)
		case !ok:
			ids = append(ids, s.tokens[piece]...)
		default:
			n, err := strconv.Atoi(length)
			if err != nil {
				s.t.Fatal(err)
			}
			for i := range n {
				ids = append(ids, uint32(saltOf(word, ""))%1000+uint32(i))
			}
		}
	}
	return ids
}

func (s *script) counts() {
	n := reflect.ValueOf(s.on.core.Counts())
	var parts []string
	for i := range n.NumField() {
		if f := n.Field(i); !f.IsZero() {
			parts = append(parts, fmt.Sprintf("%s %v", strings.ToLower(n.Type().Field(i).Name), f))
		}
	}
	s.say("%s", strings.Join(parts, ", "))
}

func (s *script) run(until int64) {
	if s.pair != nil {
		s.runPair(until)
		return
	}
	e := s.on
	for {
		due, ok := e.core.Due()
		if !ok || due > until {
			break
		}
		for step := e.core.Advance(due); step != nil; step = e.core.Advance(due) {
			s.print(step)
		}
	}
	e.now = until
}

func (s *script) runPair(until int64) {
	for due, ok := s.pair.Due(); ok && due <= until; due, ok = s.pair.Due() {
		for side, step := s.pair.Advance(due); step != nil; side, step = s.pair.Advance(due) {
			s.on = s.engines["d"]
			if side == s.engines["p"].core {
				s.on = s.engines["p"]
			}
			s.print(step)
		}
	}
	for _, e := range s.engines {
		e.now = until
	}
}

func (s *script) print(step *Step) {
	e, b := s.on, step.Batch
	if s.pair != nil {
		s.out.WriteString(e.name + " ")
	}
	s.say("%v prefill %d in %d, decode %d; then %d running, %d waiting:%s", time.Duration(step.End), b.Prefill, b.Chunks, b.Decode, step.Running, step.Waiting, s.ids(step))
	for _, f := range step.First {
		s.say("  %s first:%s", e.names[f.Ref], s.stamps(f))
	}
	for _, d := range step.Done {
		more := ""
		if d.Retractions > 0 {
			more = fmt.Sprintf(", retractions %d", d.Retractions)
		}
		if d.Owed != 0 {
			more += ", its pages kept"
			e.owed[e.names[d.Ref]] = d.Owed
		}
		if d.Expired {
			more += ", its lease over"
		}
		if d.Err != nil {
			more += fmt.Sprintf(", %v", d.Err)
		}
		if d.Stage != StageNone {
			more += fmt.Sprintf(" (in %s)", map[Stage]string{StageBootstrap: "bootstrap", StageTransfer: "transfer"}[d.Stage])
		}
		s.say("  %s done: %s after %d%s", e.names[d.Ref], d.Reason, d.Completion, more)
	}
	for _, r := range step.Reserved {
		s.say("  %s reserved, wants %d tokens", e.names[r.Ref], r.Tokens)
	}
	for _, ref := range step.Fetched {
		s.say("  %s fetched", e.names[ref])
	}
	for _, k := range step.Kept {
		s.say("  %s kept, %d tokens in pages %v, %d cached", e.names[k.Ref], k.Tokens, k.Pages, k.Cached)
	}
	for _, ref := range step.Retracted {
		s.say("  %s retracted", e.names[ref])
	}
}

// ids returns what each request got: a3 is its third id, a3-5 are three.
func (s *script) ids(step *Step) string {
	e := s.on
	first, last := map[string]uint32{}, map[string]uint32{}
	for i, ref := range step.Ref {
		name := e.names[ref]
		s.tokens[name] = append(slices.Clip(s.tokens[name]), step.ID[i])
		if first[name] == 0 {
			first[name] = step.Total[i]
		}
		last[name] = step.Total[i]
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(first)) {
		fmt.Fprintf(&b, " %s%d", name, first[name])
		if last[name] > first[name] {
			fmt.Fprintf(&b, "-%d", last[name])
		}
	}
	return b.String()
}

func (s *script) stamps(f First) string {
	st, text := f.Stamps, ""
	span := func(name string, from, to int64) {
		text += fmt.Sprintf(" %s %v-%v", name, time.Duration(from), time.Duration(to))
	}
	if st.BootstrapStart > 0 || st.BootstrapEnd > 0 {
		span("bootstrap", st.BootstrapStart, st.BootstrapEnd)
	}
	span("queue", st.QueueStart, st.QueueEnd)
	if st.TransferEnd > 0 {
		span("transfer", st.TransferStart, st.TransferEnd)
		text += fmt.Sprintf(" running %v", time.Duration(st.WaitingToRunning))
	} else {
		span("prefill", st.PrefillStart, st.PrefillEnd)
	}
	if f.Cached > 0 {
		text += fmt.Sprintf(", %d cached", f.Cached)
	}
	if s.on.core.opts.DPSize > 1 {
		text += fmt.Sprintf(", rank %d", f.DPRank)
	}
	return text
}
