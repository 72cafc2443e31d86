package simserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// Faults strike on the engines' OpenAI servers as on the plain one.
func TestFaultsOverEngineVoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, base := range []string{b.vllm, b.sglang} {
			for fault, check := range map[string]func(a answerText, words int, err error) bool{
				"cut,after=7": func(a answerText, n int, err error) bool {
					return errors.Is(err, io.ErrUnexpectedEOF) && !a.terminated && n == 7
				},
				"reset,after=7": func(a answerText, n int, err error) bool { return errors.Is(err, syscall.ECONNRESET) && !a.terminated },
				"truncate,after=7": func(a answerText, n int, err error) bool {
					return err == nil && !a.terminated && n == 7 && a.reason[0] == ""
				},
				"unavailable": func(a answerText, n int, err error) bool {
					return err == nil && a.status == 503
				},
				"fail": func(a answerText, n int, err error) bool {
					return err == nil && a.status == http.StatusInternalServerError
				},
				"miscount": func(a answerText, n int, err error) bool {
					return err == nil && n == 20 && a.usage.CompletionTokens == 21
				},
				"skip,after=7":   func(a answerText, n int, err error) bool { return err == nil && n < 0 && len(a.text[0]) == 4*19 },
				"repeat,after=7": func(a answerText, n int, err error) bool { return err == nil && n < 0 && len(a.text[0]) == 4*21 },
				"garble,after=7": func(a answerText, n int, err error) bool { return err != nil && n == 7 },
				"stray,after=7": func(a answerText, n int, err error) bool {
					return err == nil && n == 20 && len(a.text) == completion.StrayChoice+1
				},
			} {
				b.faults(fault)
				a, err := b.post(context.Background(), base+chat, ask+`,"stream":true}`)
				n := 0
				if len(a.text) > 0 {
					var wrong error
					if n, wrong = b.verify(a.text[0]); wrong != nil {
						n = -1
					}
				}
				if !check(a, n, err) {
					a.text = a.text[:min(1, len(a.text))]
					t.Errorf("%s %s: %+v, %d words, %v", base, fault, a.text, n, err)
				}
				if got := b.e.State().Faults; got[0].Times != 1 {
					t.Errorf("%s: struck %+v", fault, got)
				}
			}
		}
		b.faults()
	})
}

// A client of /generate whose stream breaks has everything that came before, and no end.
func TestFaultsOverGenerate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, incremental := range []bool{false, true} {
			b := start(t, Options{SGLang: flags.SGLang{Incremental: incremental}})
			const body = `{"text":"abc","stream":true,"sampling_params":{"max_new_tokens":20,"ignore_eos":true}}`
			whole := b.generate(body).last()
			var want []uint32
			for _, g := range b.generate(body).all {
				if incremental {
					want = append(want, g.OutputIDs...)
				} else {
					want = g.OutputIDs
				}
			}
			type read struct {
				ids    []uint32
				counts []int
				done   bool
				err    error
				status int
				strays int
			}
			get := func() (r read) {
				resp, err := b.client.Post(b.sglang+"/generate", "application/json", strings.NewReader(body))
				if err != nil {
					return read{err: err}
				}
				defer resp.Body.Close()
				r.status = resp.StatusCode
				lines := bufio.NewScanner(resp.Body)
				for lines.Scan() {
					data, ok := strings.CutPrefix(lines.Text(), "data: ")
					if !ok || data == "[DONE]" {
						r.done = r.done || ok
						continue
					}
					var g generated
					if r.err = json.Unmarshal([]byte(data), &g); r.err != nil {
						return r
					}
					if g.Index != nil {
						r.strays++
						continue
					}
					r.counts = append(r.counts, g.Meta.CompletionTokens)
					if incremental {
						r.ids = append(r.ids, g.OutputIDs...)
					} else {
						r.ids = g.OutputIDs
					}
				}
				r.err = lines.Err()
				return r
			}
			for fault, check := range map[string]func(r read) bool{
				"cut,after=7":      func(r read) bool { return errors.Is(r.err, io.ErrUnexpectedEOF) && slices.Equal(r.ids, want[:7]) },
				"cut":              func(r read) bool { return errors.Is(r.err, io.ErrUnexpectedEOF) && len(r.ids) == 0 && r.status == 200 },
				"reset,after=7":    func(r read) bool { return errors.Is(r.err, syscall.ECONNRESET) && len(r.ids) <= 7 },
				"truncate,after=7": func(r read) bool { return r.err == nil && !r.done && slices.Equal(r.ids, want[:7]) },
				"unavailable":      func(r read) bool { return r.status == http.StatusServiceUnavailable },
				"fail":             func(r read) bool { return r.status == http.StatusInternalServerError },
				"miscount":         func(r read) bool { return r.done && slices.Equal(r.ids, want) && r.counts[len(r.counts)-1] == 21 },
				"skip,after=7":     func(r read) bool { return r.done && slices.Equal(r.ids, slices.Delete(slices.Clone(want), 7, 8)) },
				"repeat,after=7":   func(r read) bool { return r.done && slices.Equal(r.ids, slices.Insert(slices.Clone(want), 7, want[7])) },
				"garble,after=7":   func(r read) bool { return r.err != nil && slices.Equal(r.ids, want[:7]) },
				"stray,after=7":    func(r read) bool { return r.done && slices.Equal(r.ids, want) && r.strays == 1 },
			} {
				b.faults(fault)
				if r := get(); !check(r) {
					t.Errorf("incremental %v, %s: %+v, want the ids %v", incremental, fault, r, want)
				}
			}
			// A stalled stream ends when the client goes.
			b.faults("stall,after=3")
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			if a, err := b.post(ctx, b.sglang+"/generate", body); err == nil || a.terminated {
				t.Errorf("stall: %+v", a)
			}
			cancel()
			b.faults()
			b.settle("rest", func(s engine.State) bool { return s.Running+s.Waiting == 0 })
			if *whole.Text == "" {
				t.Error("no text")
			}
		}
	})
}
