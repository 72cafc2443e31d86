package gateway

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// injection panics where it is asked to: in a method of a stream's leg, answer or
// carrier, each of which stands before the real one.
type injection struct {
	in  string
	hit bool
}

func (i *injection) at(method string) {
	if strings.Contains(i.in, method) {
		i.hit = true
		panic("injected: " + method)
	}
}

type panickingLeg struct {
	drive.Leg
	*injection
}

func (l *panickingLeg) Take(h *drive.Hand, round int) (bool, error) {
	l.at("take")
	return l.Leg.Take(h, round)
}

func (l *panickingLeg) Close() {
	l.Leg.Close()
	l.at("close")
}

type panickingAnswer struct {
	answer.Answer
	*injection
}

func (a *panickingAnswer) Next(in *answer.Input, s *answer.Scratch, at answer.Stages) answer.Part {
	a.at("next")
	return a.Answer.Next(in, s, at)
}

func (a *panickingAnswer) AppendError(dst []byte, e *infer.Error) ([]byte, bool) {
	a.at("append the error")
	return a.Answer.AppendError(dst, e)
}

func (a *panickingAnswer) Usage() (infer.Usage, bool) {
	a.at("usage")
	return a.Answer.Usage()
}

type panickingCarrier struct {
	front.Carrier
	*injection
}

func (c *panickingCarrier) Send(frame *[]byte, b []byte, last bool) (bool, error) {
	c.at("send")
	return c.Carrier.Send(frame, b, last)
}

func (c *panickingCarrier) Rest() error {
	c.at("rest")
	return c.Carrier.Rest()
}

func (c *panickingCarrier) End(whole, unread bool) {
	c.at("end")
	c.Carrier.End(whole, unread)
}

// A panic anywhere in what a stream does off net/http, whose goroutines nobody else
// guards, ends that stream and nothing else: it has one record, holds nothing any more,
// and where its client can be told it is told.
func TestPanicOffNetHTTP(t *testing.T) {
	words()
	for _, test := range []struct {
		in    string
		whole bool // the client has the whole answer
		told  bool // that it failed
	}{
		{"take", false, true},
		{"next", false, true},
		{"send", false, false},
		{"rest", false, false},
		{"next, then append the error", false, false},
		{"usage", true, false},
		{"close", true, false},
		{"end", true, false},
	} {
		t.Run(test.in, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				r := newRig(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
				window := 1 << 20
				if test.in == "rest" {
					window = 400
				}
				r.ask(chatPath, askStream(``), window)
				c := r.call(0)
				c.offer(words()[:1], nil)
				r.settle()
				if !r.left.Load() {
					t.Fatal("the stream has not left net/http")
				}
				r.read(1 << 20)
				inject := &injection{in: test.in}
				r.x.stream.Leg = &panickingLeg{r.x.stream.Leg, inject}
				r.x.stream.Answer = &panickingAnswer{r.x.stream.Answer, inject}
				r.x.stream.Response.Carrier = &panickingCarrier{r.x.stream.Response.Carrier, inject}
				c.offer(words()[1:20], nil)
				r.settle()
				c.offer(words()[20:21], ending(infer.ReasonStop))
				r.settle()
				time.Sleep(time.Minute)
				r.settle()
				if !inject.hit {
					t.Fatal("nothing was injected")
				}
				if r.g.recorder.Live() != 0 {
					t.Fatalf("%d requests are live", r.g.recorder.Live())
				}
				r.g.driver.Wait()
				if requests, tokens := r.g.preparer.Gate.Load(); requests != 0 || tokens != 0 {
					t.Errorf("%d requests and %d tokens are still held", requests, tokens)
				}
				if !strings.Contains(log.String(), "panic while serving a request") {
					t.Errorf("logged %s", log.String())
				}
				if rec := r.x.stream.Record.Record; rec.Outcome == infer.Finished && !test.whole || rec.Finished == 0 {
					t.Errorf("ended as %v %s", rec.Outcome, rec.Code)
				}
				r.read(1 << 20)
				body, whole := r.response()
				if told := strings.Contains(string(body), "internal_error"); whole != test.whole || told != test.told {
					t.Errorf("whole %v, told %v: %s", whole, told, body)
				}
				r.close()
			})
		})
	}
}
