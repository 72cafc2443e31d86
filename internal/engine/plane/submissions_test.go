package plane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// batching is a peer that takes submissions in batches.
func batching(t testing.TB, options ...grpc.ServerOption) *peer {
	p := newPeer(t, "bufconn", options...)
	p.facts.Submissions = true
	return p
}

// carried returns how many requests came in each message of Submissions.
func (p *peer) carried() (each []int, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.batches {
		all += n
	}
	return slices.Clone(p.batches), all
}

func wantCarried(t *testing.T, p *peer, want int) {
	t.Helper()
	if each, all := p.carried(); all != want {
		t.Errorf("Submissions carried %v, want %d requests", each, want)
	}
}

// Many requests at once share messages, and each gets its own answer.
func TestBatchesShareMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		b, e := start(t, p, p.options())
		var calls []*enginetest.Call
		for range 400 {
			calls = append(calls, b.Go(b.Ctx, 4))
		}
		for i, c := range calls {
			b.Wait(c)
			if c.Err != nil || c.Leg.Acked < c.Leg.ToServer || c.Leg.Stamps.ServerCreated == 0 {
				t.Fatalf("request %d: error %v, leg %+v", i, c.Err, c.Leg)
			}
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{uint32(i)}, Finish: infer.ReasonStop})
			b.WantFinish(c, infer.ReasonStop)
			if !slices.Equal(c.Sink.IDs(), []uint32{uint32(i)}) {
				t.Fatalf("request %d got %v", i, c.Sink.IDs())
			}
		}
		each, all := p.carried()
		if all != len(calls) || len(each) > all/4 {
			t.Errorf("%d messages for %d of %d requests", len(each), all, len(calls))
		}
		if f := e.Figures(); int(f.Batches) != len(each) || f.Accepted != uint64(all) || f.Submitted != uint64(all) || f.Live != 0 {
			t.Errorf("figures %+v", f)
		}
		if n := e.current.Load().subs.unanswered.Load(); n != 0 {
			t.Errorf("%d bytes without an answer", n)
		}
	})
}

// A refusal in a batch is judged as Submit's error is, whatever its code, and concerns no
// other request.
func TestRefusedAmongOthers(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got [2]*infer.Error
				for i := range got {
					p := batching(t)
					p.facts.Submissions = i == 1
					b, e := start(t, p, p.options())
					before := b.Accept(4)
					p.mu.Update(func() { p.refuse = code })
					c := b.Go(b.Ctx, 4)
					b.Wait(c)
					if !errors.As(c.Err, &got[i]) {
						t.Fatalf("error %v", c.Err)
					}
					if i == 1 {
						wantCarried(t, p, 2)
						after := b.Accept(4)
						for _, c := range []*enginetest.Call{before, after} {
							p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonStop})
							b.WantFinish(c, infer.ReasonStop)
						}
						held := 0
						if code == codes.AlreadyExists {
							held = 1 // by the engine, it says
						}
						if f := e.Figures(); f.Live != held || f.Lost != [mux.NumLosses]uint64{} {
							t.Errorf("figures %+v", f)
						}
					}
					b.Stop()
				}
				if code == codes.Canceled || code == codes.DeadlineExceeded {
					// Submit may have got these from its own end. A notice is the engine's word.
					if e := got[1]; e.Code != infer.CodeEngine || !e.Retryable || !e.NotRun {
						t.Errorf("%+v", e)
					}
					return
				}
				if got[0].Code != got[1].Code || got[0].Retryable != got[1].Retryable || got[0].NotRun != got[1].NotRun || got[0].Message != got[1].Message {
					t.Errorf("by Submit %+v, in a batch %+v", got[0], got[1])
				}
			})
		})
	}
}

// The engine ends the call and not the session. Requests without an answer fail with an error
// that may be retried, and are aborted. Output of theirs that comes later reaches nobody. Later
// requests go by Submit.
func TestCallOfSubmissionsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		ended := make(chan struct{})
		p.mu.Update(func() { p.batchesEnd = ended })
		b, e := start(t, p, p.options())
		running := b.Accept(10)
		p.Hold()
		var calls []*enginetest.Call
		for range 5 {
			calls = append(calls, b.Go(b.Ctx, 4))
		}
		for _, c := range calls {
			b.Must(p.Arrived(b.Ctx, c.Request.ID))
		}
		close(ended)
		for _, c := range calls {
			b.Wait(c)
			if got := infer.AsError(c.Err); !got.Retryable || got.NotRun || got.Code != infer.CodeUnavailable {
				t.Errorf("error %+v", got)
			}
			b.Must(p.Aborted(b.Ctx, c.Request.ID))
			c.Sink.Seal()
		}
		for _, c := range calls {
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{3}})
			p.Step(enginetest.Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
		}
		p.mu.Update(func() { p.hold = false })
		_, before := p.carried()
		after := b.Accept(4)
		wantCarried(t, p, before)
		for _, c := range []*enginetest.Call{running, after} {
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonStop})
			b.WantFinish(c, infer.ReasonStop)
		}
		if f := e.Figures(); f.Live != 0 || f.Sessions != 1 {
			t.Errorf("figures %+v", f)
		}
	})
}

// An engine that says it has Submissions and refuses the call, as behind a proxy that does not
// know it, gets its requests by Submit.
func TestCallOfSubmissionsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		p.batchesFail = status.Error(codes.Unimplemented, "unknown method")
		b, e := start(t, p, p.options())
		synctest.Wait()
		c := b.Accept(4)
		p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonStop})
		b.WantFinish(c, infer.ReasonStop)
		wantCarried(t, p, 0)
		if f := e.Figures(); f.Sessions != 1 || f.Accepted != 1 {
			t.Errorf("figures %+v", f)
		}
	})
}

// An engine that does not say that it has Submissions is not asked for it.
func TestNoBatchesUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		b, _ := start(t, p, p.options())
		b.Accept(4)
		wantCarried(t, p, 0)
	})
}

// An engine that never answers is waited for as long as each request's own time, and what it
// holds of weir's bytes is bounded: the requests above that go by Submit.
func TestNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t, grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20)) // which bound nothing
		b, e := start(t, p, p.options())
		synctest.Wait()
		p.Hold()
		prompt := slices.Repeat([]uint32{1 << 15}, 1000)
		var calls []*enginetest.Call
		for range 40 {
			ctx, cancel := context.WithTimeout(b.Ctx, time.Duration(1+len(calls))*time.Second)
			defer cancel()
			req := b.Request(4)
			req.Prompt = prompt
			calls = append(calls, b.GoWith(ctx, req))
		}
		began := time.Now()
		for i, c := range calls {
			b.Wait(c)
			if got := infer.AsError(c.Err); got.Code != infer.CodeDeadline || !got.Retryable || got.NotRun {
				t.Fatalf("request %d: %+v", i, got)
			}
			if took := time.Since(began); took != time.Duration(1+i)*time.Second {
				t.Errorf("request %d ended after %v", i, took)
			}
			b.Must(p.Aborted(b.Ctx, c.Request.ID))
		}
		if _, all := p.carried(); all < 10 || all*3000 > maxUnanswered {
			t.Errorf("%d requests in batches", all)
		}
		// Late answers give the bytes back.
		for _, c := range calls {
			p.Step(enginetest.Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
		}
		synctest.Wait()
		if n := e.current.Load().subs.unanswered.Load(); n != 0 || e.Figures().Live != 0 {
			t.Errorf("%d bytes without an answer, figures %+v", n, e.Figures())
		}
	})
}

// A request that has to wait for one of HTTP/2's windows does not go in a batch.
func TestNothingWaitsForWindows(t *testing.T) {
	const size = 3000
	req := make([]byte, size)
	for _, c := range []struct {
		name         string
		room         uint32 // of each stream, in SETTINGS
		before, last int    // requests that fit, before and after what the engine gives
		gives        func(w *wire)
	}{
		{"of the call", 30_000, 5, 7, func(w *wire) { w.WriteWindowUpdate(submissionsStream, 7*size) }},
		{"of the connection", 1 << 20, 17, 4, func(w *wire) { w.WriteWindowUpdate(0, 4*size) }},
		{"by SETTINGS", 30_000, 5, 9, func(w *wire) {
			w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 30_000 + 9*size})
		}},
		{"of another stream", 30_000, 5, 0, func(w *wire) { w.WriteWindowUpdate(stepsStream, 9*size) }},
		{"less than nothing", 30_000, 5, 0, func(w *wire) { w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) }},
		{"no stream has any", 0, 0, 0, func(w *wire) { w.WriteWindowUpdate(0, 9*size) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire()
			w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: c.room})
			tp := &tape{in: &w.Buffer}
			s := play(t, tp, 1000)
			if err := s.advance(); err != nil {
				t.Fatal(err)
			}
			var messages atomic.Uint64
			if err := s.subs.begin(&messages); err != nil {
				t.Fatal(err)
			}
			fit := func() (n int) {
				for ; ; n++ {
					g := new(generation)
					ok, mine := s.subs.add(g, req)
					if !ok {
						if g.owed.Load() != 0 {
							t.Error("owed for what was not sent")
						}
						return n
					}
					if mine != (n == 0) {
						t.Errorf("request %d is to be written by its own goroutine: %v", n, mine)
					}
					s.subs.unanswered.Store(0)
				}
			}
			before := fit()
			if err := s.subs.write(1); err != nil {
				t.Fatal(err)
			}
			c.gives(w)
			if err := s.advance(); err != nil {
				t.Fatal(err)
			}
			if last := fit(); before != c.before || last != c.last {
				t.Errorf("%d and then %d requests, want %d and %d", before, last, c.before, c.last)
			}
			if want := uint64((before + 4) / 5); messages.Load() != want {
				t.Errorf("%d messages, want %d", messages.Load(), want)
			}
		})
	}
}

// A large prompt goes by Submit, whatever the windows.
func TestLargePromptBesideBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		b, _ := start(t, p, p.options())
		b.Accept(4)
		large := b.Request(4)
		large.Prompt = slices.Repeat([]uint32{1}, maxFrame)
		c := b.GoWith(b.Ctx, large)
		b.Wait(c)
		b.Must(c.Err)
		b.Accept(4)
		wantCarried(t, p, 2)
	})
}

// An engine that dies with requests that it has not answered loses all of them explicitly.
func TestCutWithSubmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		b, _ := start(t, p, p.options())
		p.Hold()
		var calls []*enginetest.Call
		for range 20 {
			calls = append(calls, b.Go(b.Ctx, 4))
		}
		for _, c := range calls {
			b.Must(p.Arrived(b.Ctx, c.Request.ID))
		}
		wantCarried(t, p, len(calls))
		p.Cut()
		for _, c := range calls {
			b.Wait(c)
			if got := infer.AsError(c.Err); got.Code != infer.CodeUnavailable || !got.Retryable || c.Sink.Deltas() != 0 {
				t.Errorf("error %+v, %d deltas", got, c.Sink.Deltas())
			}
		}
	})
}

// Answers that nobody waits for show that the two ends disagree about the session.
func TestStrayAnswer(t *testing.T) {
	accepted := func(slot uint32) *planepb.Notice {
		return &planepb.Notice{Slot: slot, Accepted: &planepb.SubmitReply{}}
	}
	for _, c := range []struct {
		name    string
		batches bool
		notices func(slot uint32) []*planepb.Notice
		want    mux.FaultReason
	}{
		{"of Submit", false, func(slot uint32) []*planepb.Notice { return []*planepb.Notice{accepted(slot)} }, FaultAnswer},
		{"twice", true, func(slot uint32) []*planepb.Notice { return []*planepb.Notice{accepted(slot)} }, FaultAnswer},
		{"refused after all", true, func(slot uint32) []*planepb.Notice {
			return []*planepb.Notice{{Slot: slot, Refused: &planepb.Refusal{Code: 8}}}
		}, FaultAnswer},
		{"of an unused slot", true, func(slot uint32) []*planepb.Notice { return []*planepb.Notice{accepted(slot + 1)} }, FaultSlot},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := batching(t)
				p.facts.Submissions = c.batches
				b, e := start(t, p, p.options())
				call := b.Accept(4)
				p.last().send(&planepb.Step{Sequence: p.last().next, Notice: c.notices(slotOf(p, call))})
				end := b.WantFinish(call, infer.ReasonError)
				if faultOf(end.Err) != c.want || e.Figures().Lost[mux.LossIntegrity] != 1 {
					t.Errorf("finish %v", end.Err)
				}
			})
		})
	}
}

// An engine that sends ids for a request of a batch and then refuses it contradicts itself.
func TestRefusedAfterIDsInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		b, e := start(t, p, p.options())
		p.Hold()
		call := b.Go(b.Ctx, 4)
		b.Must(p.Arrived(b.Ctx, call.Request.ID))
		slot := slotOf(p, call)
		p.last().send(&planepb.Step{Sequence: 1, Slot: []uint32{slot}, Total: []uint32{1}, Id: []uint32{5}})
		b.Wait(call)
		b.Must(call.Err)
		p.last().send(&planepb.Step{Sequence: 2, Notice: []*planepb.Notice{{Slot: slot, Refused: &planepb.Refusal{Code: 8}}}})
		if end := b.WantFinish(call, infer.ReasonError); faultOf(end.Err) != FaultRefused || !end.Err.Retryable {
			t.Errorf("finish %v", end.Err)
		}
		if f := e.Figures(); f.Live != 0 || f.Sessions != 1 {
			t.Errorf("figures %+v", f)
		}
	})
}

// A caller that gives up before the answer has its request aborted, also when the abort came
// before the engine knew the request.
func TestAbortBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t)
		stuck := make(chan struct{})
		p.mu.Update(func() { p.batchesStuck = stuck })
		b, _ := start(t, p, p.options())
		ctx, cancel := context.WithCancel(b.Ctx)
		call := b.Go(ctx, 4)
		synctest.Wait()
		cancel()
		b.Wait(call)
		if got := infer.AsError(call.Err); got.Code != infer.CodeCancelled {
			t.Errorf("error %+v", got)
		}
		synctest.Wait()
		if n := p.aborted(); n != 1 {
			t.Errorf("%d aborts", n)
		}
		close(stuck) // the engine reads the request now, after the abort
		b.Must(p.Aborted(b.Ctx, call.Request.ID))
	})
}

// An engine that takes no second stream beside the steps gets its requests by Submit.
func TestOneStreamOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := batching(t, grpc.MaxConcurrentStreams(1))
		o := p.options()
		s := New(o)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		session, err := s.connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if session.subs != nil {
			t.Error("a second stream")
		}
		cancel()
		session.disconnect()
	})
}

// appendSubmit writes the bytes that the generated encoder writes.
func TestAppendSubmit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u32 := rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Uint32())
		f64 := rapid.Ptr(rapid.Float64(), true)
		req := &planepb.SubmitRequest{
			Session: rapid.Uint64().Draw(t, "session"), Slot: u32.Draw(t, "slot"), RequestId: rapid.String().Draw(t, "id"),
			Prompt: manyOf(rapid.SliceOf(u32).Draw(t, "prompt"), rapid.IntRange(1, 40).Draw(t, "times")), MaxTokens: u32.Draw(t, "max"), MinTokens: u32.Draw(t, "min"),
			IgnoreEos: rapid.Bool().Draw(t, "eos"), StopIds: rapid.SliceOf(u32).Draw(t, "stop"),
			Temperature: f64.Draw(t, "temperature"), TopP: f64.Draw(t, "p"), TopK: rapid.Ptr(rapid.Int32(), true).Draw(t, "k"),
			Seed: rapid.Ptr(rapid.Int64(), true).Draw(t, "seed"), ToContext: rapid.Bool().Draw(t, "context"),
		}
		if rapid.Bool().Draw(t, "more") {
			req.MinP, req.PresencePenalty, req.FrequencyPenalty, req.RepetitionPenalty = f64.Draw(t, "min p"), f64.Draw(t, "presence"), f64.Draw(t, "frequency"), f64.Draw(t, "repetition")
			req.CacheSalt, req.Logprobs = rapid.String().Draw(t, "salt"), rapid.Ptr(rapid.Uint32(), true).Draw(t, "logprobs")
			req.Guide = guideOf(&infer.Guide{Kind: infer.GuideRegex, Text: "a"})
			req.LogitBias = []*planepb.LogitBias{{Id: 1, Value: 2}}
		}
		b, fits := appendSubmit([]byte("before"), req, 1<<20)
		got := new(planepb.SubmitRequest)
		if !fits || proto.Unmarshal([]byte(strings.TrimPrefix(string(b), "before")), got) != nil || !proto.Equal(got, req) {
			t.Fatalf("fits %v, %v for %v", fits, got, req)
		}
		if size := len(b) - len("before"); true {
			_, exactly := appendSubmit(nil, req, size)
			_, less := appendSubmit(nil, req, size-1)
			if !exactly || less {
				t.Fatalf("%d bytes: fits %v, fits %v in one less", size, exactly, less)
			}
		}
	})
}

// Each field of a request has an encoder: one that is added to the message needs one, too.
func TestAppendSubmitKnowsEachField(t *testing.T) {
	if n := new(planepb.SubmitRequest).ProtoReflect().Descriptor().Fields().Len(); n != 22 {
		t.Errorf("SubmitRequest has %d fields; appendSubmit must encode each or leave it to the generated encoder", n)
	}
}

// manyOf repeats ids until the size of their column may need another byte.
func manyOf(ids []uint32, times int) (all []uint32) {
	for range times {
		all = append(all, ids...)
	}
	return all
}

// BenchmarkSubmission is the encoding of a request.
func BenchmarkSubmission(b *testing.B) {
	for _, n := range []int{200, 50_000} {
		req := &planepb.SubmitRequest{Session: 1 << 60, Slot: 40, RequestId: "chatcmpl-0123456789abcdef", MaxTokens: 2, IgnoreEos: true}
		r := rand.New(rand.NewPCG(1, 2))
		for range n {
			req.Prompt = append(req.Prompt, r.Uint32N(1<<r.IntN(18)))
		}
		var buf []byte
		b.Run(fmt.Sprintf("by hand/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = appendSubmit(buf[:0], req, math.MaxInt)
			}
		})
		b.Run(fmt.Sprintf("generated/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = proto.MarshalOptions{}.MarshalAppend(buf[:0], req)
			}
		})
	}
}
