//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weir/internal/lab/proc"
)

// rig is a gateway in front of the engine that follows a script.
type rig struct {
	engine  *engine
	gateway string
	header  []string
	memory  func() int64 // resident bytes of the gateway
	// patience bounds the time of an answer. flood is the time for which the gateway may
	// take in output that its client does not read.
	patience, flood time.Duration
}

// testCase is a question about a gateway. The answer is a few words.
type testCase struct {
	name string
	ask  func(context.Context, *rig) string
}

func cases() []testCase {
	return []testCase{
		{"the engine's connection breaks in mid-stream: the client sees", cut},
		{"the stream ends without a finish and without `[DONE]`: the client sees", unfinished},
		{"an error event after the 200: the client sees", errorEvent},
		{"the engine answers 503: status for the client, tries at the engine", refused},
		{"the request's body at the engine", requestKept},
		{"the stream's bytes at the client", streamKept},
		{"the client hangs up in mid-stream: the engine is free after", hangUp(true)},
		{"the client hangs up before the first token: the engine is free after", hangUp(false)},
		{"a client that does not read: taken from the engine, resident more", slow},
	}
}

// body is the smallest completion.
const body = `{"model":"bench","messages":[{"role":"user","content":"Say something."}],"stream":true}`

// open sends a completion request and returns the response.
func (r *rig) open(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.gateway+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, line := range r.header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	return client.Do(req)
}

// complete sends a completion request, reads the response to its end, and returns how it ended.
func (r *rig) complete(ctx context.Context, body string) (text string, end string, status int) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	resp, err := r.open(ctx, body)
	if err != nil {
		return "", "no answer: " + err.Error(), 0
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err == nil:
		return string(b), "a clean end", resp.StatusCode
	case errors.Is(err, context.DeadlineExceeded):
		return string(b), fmt.Sprintf("no end within %v", r.patience), resp.StatusCode
	}
	return string(b), "a broken connection", resp.StatusCode
}

// ending describes how a stream ended.
func ending(text, end string) string {
	var parts []string
	if strings.Contains(text, `"error"`) {
		parts = append(parts, "an error event")
	}
	if i := strings.LastIndex(text, `"finish_reason":"`); i >= 0 {
		reason, _, _ := strings.Cut(text[i+len(`"finish_reason":"`):], `"`)
		parts = append(parts, "finish_reason `"+reason+"`")
	}
	if strings.Contains(text, "data: [DONE]") {
		parts = append(parts, "`[DONE]`")
	}
	return strings.Join(append(parts, end), ", ")
}

// words counts the words of event in a stream.
func words(text string) int { return len(wordMark.FindAllString(text, -1)) }

var wordMark = regexp.MustCompile(`" w[0-9]+"`)

func cut(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		x.begin()
		for i := range 3 {
			_ = x.say(event(i)) // a client that has hung up needs no more
		}
		time.Sleep(200 * time.Millisecond) // the events are on their way by then
	})
	text, end, _ := r.complete(ctx, body)
	return ending(text, end) + missing(text, 3)
}

// missing describes the words that did not come.
func missing(text string, want int) string {
	if got := words(text); got != want {
		return fmt.Sprintf(" (%d of %d words)", got, want)
	}
	return ""
}

func unfinished(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		x.begin()
		for i := range 3 {
			_ = x.say(event(i))
		}
		x.end()
	})
	text, end, _ := r.complete(ctx, body)
	return ending(text, end) + missing(text, 3)
}

// engineError is the event of an engine that fails in mid-stream.
const engineError = `{"error":{"message":"CUDA out of memory","type":"internal_error","code":500}}`

func errorEvent(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		x.begin()
		_ = x.say(event(0))
		_ = x.say("data: " + engineError + "\n\n")
		_ = x.say(done)
		x.end()
	})
	text, end, _ := r.complete(ctx, body)
	says := "the error is gone; "
	switch {
	case strings.Contains(text, "data: "+engineError+"\n"):
		says = "its bytes; "
	case strings.Contains(text, "CUDA out of memory"):
		says = "its message in other words; "
	case strings.Contains(text, `"error"`):
		says = "another error; "
	}
	return says + ending(text, end)
}

func refused(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		const busy = `{"error":{"message":"busy","type":"overloaded","code":503}}`
		fmt.Fprintf(x.conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 7\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(busy), busy)
	})
	_, _, status := r.complete(ctx, body)
	tries, _ := r.engine.asked()
	return fmt.Sprintf("%d, %d", status, tries)
}

// odd is a body with parts that are lost if a gateway decodes and writes it anew: an
// unknown field, an integer above 2^53, the spelling of a number, a needless escape,
// white space, and the order of keys.
const odd = `{"model": "bench", "zeta": {"b": [1, 2.50, null], "a": true}, "messages": [{"role": "user", "content": "a <b> \u00e9 \/"}], "seed": 9007199254740993, "temperature": 1.0, "stream": true}`

func requestKept(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		x.begin()
		_ = x.say(event(0) + finish + done)
		x.end()
	})
	_, _, status := r.complete(ctx, odd)
	_, got := r.engine.asked()
	if got == nil {
		return fmt.Sprintf("refused with %d", status)
	}
	if string(got) == odd {
		return "the same bytes"
	}
	if same, err := compact(got); err == nil && same == must(compact([]byte(odd))) {
		return "the same but for white space"
	}
	return "written anew: " + strings.Join([]string{
		kept("unknown field", bytes.Contains(got, []byte(`"zeta"`))),
		kept("integer above 2^53", bytes.Contains(got, []byte(`9007199254740993`))),
		kept("`1.0`", bytes.Contains(spaceless(got), []byte(`"temperature":1.0`))),
		kept("order of fields", bytes.Index(got, []byte(`"messages"`)) < bytes.Index(got, []byte(`"seed"`)) && bytes.Index(got, []byte(`"seed"`)) < bytes.Index(got, []byte(`"temperature"`)) &&
			bytes.Index(got, []byte(`"temperature"`)) < bytes.Index(got, []byte(`"stream"`)) && bytes.Index(got, []byte(`"model"`)) < bytes.Index(got, []byte(`"messages"`))),
	}, ", ")
}

func spaceless(b []byte) []byte { return bytes.ReplaceAll(b, []byte(" "), nil) }

// compact returns JSON without its white space.
func compact(b []byte) (string, error) {
	var out bytes.Buffer
	err := json.Compact(&out, b)
	return out.String(), err
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

func kept(what string, is bool) string {
	if is {
		return what + " kept"
	}
	return what + " lost"
}

// oddStream is a stream with the odd parts of odd, a comment, and a usage with an
// unknown field.
const oddStream = ": ping\n\n" +
	`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{"role":"assistant","content":" w0","mood":"calm"},"logprobs":null,"finish_reason":null,"token_ids":[9007199254740993]}],"zeta":1.0}` + "\n\n" +
	finish +
	`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5,"watts":3}}` + "\n\n" + done

func streamKept(ctx context.Context, r *rig) string {
	r.engine.follow(func(x *exchange) {
		x.begin()
		for part := range strings.SplitAfterSeq(oddStream, "\n\n") {
			if part != "" {
				_ = x.say(part)
			}
		}
		x.end()
	})
	text, end, _ := r.complete(ctx, strings.Replace(body, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
	if text == oddStream {
		return "the same"
	}
	has := func(s string) bool { return strings.Contains(text, s) }
	return "written anew: " + strings.Join([]string{
		kept("comment", has(": ping")),
		kept("unknown fields", has(`"zeta"`) && has(`"mood"`) && has(`"watts"`)),
		kept("`token_ids` above 2^53", has("9007199254740993")),
		kept("`finish_reason: null`", has(`"finish_reason":null`)),
		end,
	}, ", ")
}

// hangUps is the number of hang-ups that are measured.
const hangUps = 5

// hangUp measures the time from the client's hang-up to the end of the engine's
// connection. An engine that has begun sends a word every 20 ms.
func hangUp(begun bool) func(context.Context, *rig) string {
	return func(ctx context.Context, r *rig) string {
		var took []time.Duration
		for range hangUps {
			d, err := r.hangUpOnce(ctx, begun)
			if err != nil {
				return err.Error()
			}
			took = append(took, d)
		}
		slices.Sort(took)
		return fmt.Sprintf("%s (%s to %s)", millis(took[len(took)/2]), millis(took[0]), millis(took[len(took)-1]))
	}
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

func (r *rig) hangUpOnce(ctx context.Context, begun bool) (time.Duration, error) {
	asked, freed := make(chan struct{}, 16), make(chan time.Time, 16)
	stop := make(chan struct{})
	defer close(stop)
	r.engine.follow(func(x *exchange) {
		if begun {
			x.begin()
		}
		asked <- struct{}{}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-x.gone:
				freed <- time.Now()
				return
			case <-stop:
				return
			case <-tick.C:
				if begun {
					_ = x.say(event(i)) // its failure shows as the connection's end
				}
			}
		}
	})
	call, hang := context.WithCancel(ctx)
	defer hang()
	came := make(chan error, 1)
	go func() {
		resp, err := r.open(call, body)
		if err != nil {
			came <- err
			return
		}
		defer resp.Body.Close()
		in := bufio.NewReader(resp.Body)
		for range 4 { // two events
			if _, err := in.ReadString('\n'); err != nil {
				came <- err
				return
			}
		}
		came <- nil
		<-call.Done()
	}()
	limit := time.NewTimer(r.patience)
	defer limit.Stop()
	select {
	case <-asked:
	case <-limit.C:
		return 0, errors.New("the engine was not asked")
	}
	if begun {
		if err := <-came; err != nil {
			return 0, fmt.Errorf("no events: %w", err)
		}
	} else {
		time.Sleep(50 * time.Millisecond) // the gateway waits by now
	}
	from := time.Now()
	hang()
	select {
	case at := <-freed:
		return at.Sub(from), nil
	case <-limit.C:
		return 0, fmt.Errorf("not within %v", r.patience)
	}
}

// floodBytes is the size of the output for a client that does not read.
const floodBytes = 256 << 20

func slow(ctx context.Context, r *rig) string {
	var taken atomic.Int64
	stop := make(chan struct{})
	r.engine.follow(func(x *exchange) {
		x.begin()
		ended := time.AfterFunc(r.flood, func() { x.conn.Close() })
		defer ended.Stop()
		chunk := strings.Repeat(event(0), 64)
		for taken.Load() < floodBytes {
			if x.say(chunk) != nil {
				break
			}
			taken.Add(int64(len(chunk)))
		}
		<-stop
	})
	defer close(stop)
	before := r.memory()
	call, hang := context.WithCancel(ctx)
	defer hang()
	resp, err := r.open(call, body)
	if err != nil {
		return "no answer: " + err.Error()
	}
	defer resp.Body.Close() // nothing of it is read
	time.Sleep(r.flood * 15 / 16)
	return fmt.Sprintf("%.0f MB, %+.0f MB", float64(taken.Load())/1e6, float64(r.memory()-before)/1e6)
}

// resident adds up the resident memory of processes.
func resident(pids []int) int64 {
	used, err := proc.Of(pids)
	if err != nil {
		return 0
	}
	return used.Resident
}
