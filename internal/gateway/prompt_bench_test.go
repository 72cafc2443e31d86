package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/internal/dialect/openai"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/chat"
	"weir/internal/model/tokenizer"
	"weir/internal/tenancy"
	"weir/internal/trace"
	"weir/internal/workload/gotext"
	"weir/models"
)

// size40k and size100k are the bytes of conversations of about 40,000 and 100,000 tokens.
const (
	size40k  = 140 << 10
	size100k = 410 << 10
)

// largeChat is the body of a conversation of so many bytes in many turns: Go's
// documentation and sources.
func largeChat(t testing.TB, size int) []byte {
	t.Helper()
	const turns = 24
	text := sourceText(t, size)
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You are a helpful assistant."}}
	for i := range turns {
		part := text[i*len(text)/turns : (i+1)*len(text)/turns]
		messages = append(messages, message{[]string{"user", "assistant"}[i%2], strings.ToValidUTF8(part, "")})
	}
	messages = append(messages, message{"user", "And in short?"})
	body, err := json.Marshal(map[string]any{"model": "weir-sim", "stream": true, "max_tokens": 16, "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// sourceText is half documentation and half code.
func sourceText(t testing.TB, size int) string {
	t.Helper()
	var all strings.Builder
	for _, extension := range []string{".html", ".go"} {
		text, err := gotext.Text(size/2, 16<<10, extension)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(text)
	}
	return all.String()
}

// BenchmarkPrompt measures what a chat of 40,000 tokens costs from its body to
// its ids, and each stage of that alone.
func BenchmarkPrompt(b *testing.B) {
	body := largeChat(b, size40k)
	m := simModel()
	head, err := openai.Chat.ParseHead(body)
	if err != nil {
		b.Fatal(err)
	}
	req, err := openai.Chat.Request(head, "weir", 0)
	if err != nil {
		b.Fatal(err)
	}
	in := &chat.Input{Messages: req.Messages, AddGenerationPrompt: req.AddGenerationPrompt, FromAPI: true}
	text, err := m.RenderChat(b.Context(), in)
	if err != nil {
		b.Fatal(err)
	}
	enc := m.Tokenizer.NewEncoder()
	ids, err := enc.EncodeBytes(b.Context(), nil, text, tokenizer.EncodeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("body %d bytes, text %d bytes, %d tokens", len(body), len(text), len(ids))
	run := func(name string, stage func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if err := stage(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("head", func() error { _, err := openai.Chat.ParseHead(body); return err })
	run("request", func() error { _, err := openai.Chat.Request(head, "weir", 0); return err })
	run("render", func() error { _, err := m.RenderChat(b.Context(), in); return err })
	run("tokenize cold", func() error {
		enc.Forget()
		var err error
		ids, err = enc.EncodeBytes(b.Context(), ids[:0], text, tokenizer.EncodeOptions{})
		return err
	})
	run("tokenize warm", func() error {
		var err error
		ids, err = enc.EncodeBytes(b.Context(), ids[:0], text, tokenizer.EncodeOptions{})
		return err
	})
}

// BenchmarkBodyToIDs measures all of it as a request goes through it, the pool
// included: a conversation of 40,000 tokens that nobody has seen, and one that
// was seen but for its last twentieth. cpu-ms is the process's own count.
func BenchmarkBodyToIDs(b *testing.B) {
	body := largeChat(b, size40k)
	tail := sourceText(b, len(body)/20)
	at := bytes.LastIndex(body, []byte("And in short?"))
	for _, seen := range []bool{false, true} {
		name := "new"
		opts := Options{Prepare: prepare.Options{PrefixCache: -1, Models: map[string]*model.Folder{models.SimName: simModel()}}}
		if seen {
			name, opts.Prepare.PrefixCache = "seen", 0
		}
		e := &route.Engine{Name: "a", Kind: "weir", Tokens: &tokenEngine{name: "a"}, Ready: true}
		snap := &route.Snapshot{Models: map[string]*route.Model{models.SimName: {Name: models.SimName, ByIDs: route.Side{Kind: "weir"}, Policy: new(balance.RoundRobin),
			Targets: []route.Target{{Engine: e, Rank: route.Whole("a"), Model: models.SimName}}}}}
		opts.Snapshot = func() *route.Snapshot { return snap }
		g := New(opts)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			tokens := 0
			var cpu time.Duration
			for i := 0; b.Loop(); i++ {
				fresh := body
				if seen {
					fresh = insert(b, body, at, strconv.Itoa(i)+tail)
				}
				x := chatExchange(b, g)
				before := cpuTime(b)
				if _, err := x.prepare(fresh); err != nil {
					b.Fatal(err)
				}
				cpu += cpuTime(b) - before
				x.prepared.Reservation.Leave()
				tokens += len(x.prepared.IDs)
			}
			b.ReportMetric(float64(cpu)/1e6/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(tokens)/float64(b.N), "tokens/op")
		})
		g.Close()
	}
}

// BenchmarkBodyToEngine is all that the gateway does of a chat of 100,000 tokens before it
// is handed over: body, template, ids, hashes, and the choice among so many engines by
// cost, with its booking. A chat is new, or was seen but for its last twentieth. cpu-ms is
// the process's own count.
func BenchmarkBodyToEngine(b *testing.B) {
	body := largeChat(b, size100k)
	tail := sourceText(b, len(body)/20)
	at := bytes.LastIndex(body, []byte("And in short?"))
	for _, engines := range []int{4, 1000} {
		for _, seen := range []bool{false, true} {
			all := make([]any, engines)
			for i := range all {
				all[i] = &tokenEngine{name: strconv.Itoa(i)}
			}
			snap := fleetOf(make(chan struct{}), all...)
			snap.Models[models.SimName].Policy = new(balance.Cost)
			name := fmt.Sprintf("engines=%d/new", engines)
			opts := Options{Prepare: prepare.Options{PrefixCache: -1, Models: map[string]*model.Folder{models.SimName: simModel()}}}
			if seen {
				name, opts.Prepare.PrefixCache = fmt.Sprintf("engines=%d/seen", engines), 0
			}
			opts.Snapshot = func() *route.Snapshot { return snap }
			g := New(opts)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				tokens := 0
				var cpu time.Duration
				for i := 0; b.Loop(); i++ {
					x, fresh := chatExchange(b, g), insert(b, body, at, strconv.Itoa(i)+tail)
					before := cpuTime(b)
					if _, err := x.prepare(fresh); err != nil {
						b.Fatal(err)
					}
					if err := x.place(); err != nil {
						b.Fatal(err)
					}
					cpu += cpuTime(b) - before
					x.try.End(&infer.Error{Code: infer.CodeEngine})
					x.prepared.Reservation.Leave()
					tokens += len(x.prepared.IDs)
				}
				b.ReportMetric(float64(cpu)/1e6/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(tokens)/float64(b.N), "tokens/op")
			})
			g.Close()
		}
	}
}

// insert gives a body with text put into the string at a place, outside of the time.
func insert(b *testing.B, body []byte, at int, text string) []byte {
	b.StopTimer()
	defer b.StartTimer()
	quoted, err := json.Marshal(text)
	if err != nil {
		b.Fatal(err)
	}
	return slices.Concat(body[:at], quoted[1:len(quoted)-1], body[at:])
}

// chatExchange is that of a chat.
func chatExchange(b *testing.B, g *Gateway) *exchange {
	x := &exchange{g: g, caller: tenancy.Anyone, endpoint: openai.Chat}
	x.stream.Record.Record = new(trace.Record)
	g.driver.Open(&x.stream, x)
	g.attempts.Open(&x.try, &x.stream, &x.prepared, &x.need)
	x.stream.Response.Served = &front.Served{Request: &http.Request{URL: &url.URL{Path: chatPath}}}
	return x
}

// cpuTime is what the process has used of its cores.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
