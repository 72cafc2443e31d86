package gateway

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
	"weir/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest has their form).
//
// A gateway, and a request to it. Fields are further JSON of the body, without
// blanks; the client has room for window bytes that it has not read:
//
//	gateway [write=DURATION] [idle=DURATION] [first=DURATION] [flush=DURATION]
//	        [delay=STAGE:DURATION]
//	ask [window=N] [path=/v1/completions] [FIELDS]
//	                                  a chat, or a completion, of a token engine
//	relay [window=N] [path=PATH] [type=TYPE] [framed=off]
//	                                  a chat, or what is asked for at PATH, of a relay
//	                                  engine, which answers with the head of a stream, or
//	                                  of a body of TYPE; not framed, the body ends where
//	                                  its connection does
//
// Actions of the engine:
//
//	offer N... [choice=I]             tokens, each a word, by their numbers
//	say TEXT [choice=I]               tokens of a text
//	end REASON [N...] [choice=I]      the end: stop, length, abort, with tokens
//	fail CODE [N...] [retry=on]       the end by an error
//	send TEXT                         bytes of a relay; \n is a line's end
//	close                             their end
//	break                             their end by an error
//
// Actions of the client and of its operator:
//
//	read [N]                          it reads so many bytes, or all
//	hang up
//	abort                             /abort_request
//	cut                               the gateway shuts down
//	wait DURATION
//	stages                            how long the request was in which stage
//
// A command that ends with & is followed by the next before anybody has worked on it. On
// a busy machine somebody may have all the same, so such a file is run again where it
// differs.
//
// After each command, what the client has read of the response is printed, a line
// that begins with + for each line of a chunk, what the engine was told, and what
// the stream waits for. What is the same in all chunks of a chat is printed as ~, and
// empty lines and the head's fields are left out.
func TestScripts(t *testing.T) {
	words()
	scripttest.Files(t, func(t *testing.T, text string) (got string) {
		for range 10 {
			synctest.Test(t, func(t *testing.T) { got = runScript(t, text) })
			if got == text || !strings.Contains(text, " &\n") {
				break
			}
		}
		return got
	})
}

// runScript gives the script with its output replaced by what it prints now.
func runScript(t *testing.T, text string) string {
	s := &script{t: t}
	defer s.close()
	return scripttest.Run(text, &s.out, s.command)
}

type script struct {
	t       *testing.T
	opts    Options
	rig     *rig
	aborted int // calls to Abort
	shut    bool
	state   string
	over    bool
	out     strings.Builder
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *script) close() {
	if s.rig != nil {
		s.rig.close()
	}
}

// words takes the NAME=VALUE words out of a line.
func (s *script) words(line string) (rest []string, named map[string]string) {
	named = map[string]string{}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok && !strings.HasPrefix(w, `"`) {
			named[k] = v
		} else {
			rest = append(rest, w)
		}
	}
	return rest, named
}

func (s *script) num(text string) int {
	n, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) dur(text string) time.Duration {
	d, err := time.ParseDuration(cmp.Or(text, "0"))
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) ids(numbers []string) (ids []uint32) {
	for _, n := range numbers {
		ids = append(ids, words()[s.num(n)])
	}
	return ids
}

func (s *script) command(line string) {
	line, wait := strings.CutSuffix(line, " &")
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "gateway", "ask", "relay":
		s.begin(verb, rest)
	case "offer", "say", "end", "fail":
		s.tokens(verb, rest)
	case "send":
		s.rig.forward().put(strings.ReplaceAll(rest, `\n`, "\n"), true)
	case "close":
		s.rig.forward().close()
	case "break":
		f := s.rig.forward()
		f.fault <- f.engine.fault(true)
		f.close()
	case "read":
		s.print(s.num(cmp.Or(rest, "1000000")))
	case "hang":
		s.rig.client.Close()
	case "abort":
		s.rig.x.try.Abort(s.rig.x.stream.Ctx.End)
	case "cut":
		s.rig.g.Cut()
	case "wait":
		time.Sleep(s.dur(rest))
	case "stages":
		s.stages()
	default:
		s.t.Fatalf("no command %q", line)
	}
	if s.rig != nil && verb != "stages" && !wait {
		s.rig.settle()
		s.told()
	}
}

func (s *script) begin(verb, rest string) {
	args, named := s.words(rest)
	if verb == "gateway" {
		s.opts = Options{Front: front.Options{WriteTimeout: s.dur(named["write"])}, Attempt: attempt.Options{IdleTimeout: s.dur(named["idle"]), FirstTimeout: s.dur(named["first"])}, Stream: drive.Options{FlushInterval: s.dur(named["flush"])}}
		if name, d, ok := strings.Cut(named["delay"], ":"); ok {
			stage, err := trace.ParseStage(name)
			if err != nil {
				s.t.Fatal(err)
			}
			s.opts.Record.StageDelay = map[trace.Stage]time.Duration{stage: s.dur(d)}
		}
		return
	}
	s.close()
	out := s.out.String()
	*s = script{t: s.t, opts: s.opts, rig: newRig(s.t, s.opts)}
	s.out.WriteString(out)
	asked := `"messages":[{"role":"user","content":"hi"}]`
	if named["path"] == completionsPath {
		asked = `"prompt":"hi"`
	}
	body := `{"model":"` + models.SimName + `",` + asked + `,"stream":true` + strings.Join(args, "") + `}`
	if verb == "relay" {
		body = `{"model":"relayed","stream":true}`
		s.rig.relay.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			resp := f.response(http.StatusOK, "Content-Type", cmp.Or(named["type"], "text/event-stream; charset=utf-8"))
			resp.Framed = named["framed"] != "off"
			return resp, nil
		}
	}
	s.rig.g.opts.Attempt.Continue.Off = true // TestHoweverItContinues has that
	s.rig.ask(cmp.Or(named["path"], chatPath), body, cmp.Or(s.num(named["window"]), 1<<20))
}

func (s *script) tokens(verb, rest string) {
	args, named := s.words(rest)
	c := s.rig.call(s.num(named["choice"]))
	switch verb {
	case "offer":
		c.offer(s.ids(args), nil)
	case "say":
		c.offer(said(s.t, strings.Split(strings.ReplaceAll(rest, `\n`, "\n"), " choice=")[0]), nil)
	case "end":
		reason := map[string]infer.Reason{"stop": infer.ReasonStop, "length": infer.ReasonLength, "abort": infer.ReasonAbort}[args[0]]
		c.offer(s.ids(args[1:]), ending(reason))
	case "fail":
		for code := infer.CodeInternal; ; code++ {
			if code.String() == args[0] {
				f := ending(infer.ReasonError)
				f.Err = c.engine.fault(code, len(named["retry"]) > 0)
				c.offer(s.ids(args[1:]), f)
				return
			}
		}
	}
}

// same is in every chunk of a chat, and usual in every response's head.
var (
	same  = regexp.MustCompile(`"id":"(?:chat)?cmpl-req-1","object":"(?:chat\.completion\.chunk|text_completion)","created":[0-9]+,"model":"weir-sim","choices":`)
	usual = regexp.MustCompile(`^(Content-Type|X-Request-Id|Date|X-Accel-Buffering|Connection|Transfer-Encoding): `)
)

// printed is output as the scripts have it.
func printed(out string) string {
	return "+" + strings.ReplaceAll(same.ReplaceAllString(strings.TrimRight(out, "\r\n"), "~"), "\n\n", "\n+")
}

// print reads up to n bytes as the client, and prints them by chunks.
func (s *script) print(n int) {
	arrived, closed := s.rig.read(n)
	for len(arrived) > 0 {
		chunk := arrived
		if i := bytes.Index(arrived, []byte("\r\n")); i >= 0 {
			chunk = arrived[:i+2]
		}
		arrived = arrived[len(chunk):]
		if line := printed(string(chunk)); line != "+" && !usual.MatchString(line[1:]) {
			s.say("%s", line)
		}
	}
	if closed && !s.shut {
		s.shut = true
		s.say("the connection is closed")
	}
}

// told prints what the engine was told, and what the stream waits for.
func (s *script) told() {
	aborts := 0
	for _, c := range s.rig.tokens.handed() {
		c.mu.Lock()
		aborts += c.aborts
		c.mu.Unlock()
	}
	for ; s.aborted < aborts; s.aborted++ {
		s.say("the engine is told to stop")
	}
	if x := s.rig.x; s.rig.g.recorder.Live() > 0 {
		left, state := s.rig.left.Load(), "is on net/http"
		switch {
		case left && s.opts.Stream.FlushInterval > 0:
			state = "has a goroutine of its own"
		case left && x.Parked():
			state = "waits for the engine"
		case left:
			state = "waits for the client"
		}
		if state != s.state {
			s.say("the stream %s", state)
		}
		s.state = state
		return
	}
	if rec := s.rig.x.stream.Record.Record; !s.over {
		s.over = true
		s.say("ended: %s %s", rec.Outcome, cmp.Or(rec.Code, "-"))
		s.say("%d prompt tokens, %d of the answer, %d writes, %d bytes", rec.PromptTokens, rec.CompletionTokens, rec.Flushes, rec.BytesOut)
		if body := s.rig.whole.Body.String(); body != "" {
			s.say("%s whole:\n%s", cmp.Or(s.rig.whole.Header().Get("Content-Length"), "no length,"), printed(body))
		}
		if rec.Outcome != infer.Finished {
			time.Sleep(front.HearingTime) // until a stream breaks behind its last words
			synctest.Wait()
		}
		if s.rig.cut.Load() {
			s.say("the connection is broken")
		}
	}
}

func (s *script) stages() {
	spent := s.rig.x.stream.Record.Ledger.Spent
	for stage, ns := range spent {
		if ns != 0 {
			s.say("%v %v", trace.Stage(stage), time.Duration(ns))
		}
	}
	if s.rig.record() != nil {
		s.say("residual %v", time.Duration(s.rig.x.stream.Record.Residual()))
	}
}
