package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Halves describes how requests are divided between a prefill engine and a decode engine of
// SGLang. As with SGLang's mini load balancer, the same body goes to both at once, with a
// room in which they meet, and the decode engine's answer is the answer of the request. The
// plan's URL is that of the decode engine, or of a server in front of it.
type Halves struct {
	// Prefill is the prefill engine's URL.
	Prefill string
	// Host and Port are where its registry of bootstrap addresses is.
	Host string
	Port int

	rooms int64 // from here on
}

// client makes the client that sends the prefill halves, and chooses rooms that no earlier
// run has used.
func (h *Halves) client(p *Plan) (*client, error) {
	h.rooms = rand.Int64N(1 << 52)
	at, err := p.targetAt(h.Prefill)
	return &client{target: at}, err
}

// append appends the fields by which a request's two engines meet.
func (h *Halves) append(dst []byte, index int) []byte {
	return fmt.Appendf(dst, `"bootstrap_host":%s,"bootstrap_port":%d,"bootstrap_room":%d,`, marshal(h.Host), h.Port, h.rooms+int64(index))
}

// half is the prefill half of an exchange's requests, one at a time.
type half struct {
	client *client
	cancel context.CancelFunc
	done   chan error
}

// begin sends the rendered request to the prefill engine as well.
func (h *half) begin(ctx context.Context, wire []byte, timeout time.Duration) {
	ctx, h.cancel = context.WithTimeout(ctx, timeout)
	go func() { h.done <- h.one(ctx, wire) }()
}

// end waits until the prefill engine's answer is over. It breaks it off where the decode
// half has failed, and where the prefill half has, so has the request.
func (h *half) end(s *Sample) {
	whole := s.Outcome == Complete
	if !whole {
		h.cancel()
	}
	if err := <-h.done; err != nil && whole {
		s.fail(KindPrefill, err.Error())
	}
	h.cancel()
}

// one reads the answer to its end and ignores its content: a failed half shows in its
// status, or in the decode engine's answer.
func (h *half) one(ctx context.Context, wire []byte) error {
	cn, _, err := h.client.get(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) }) // fails only when closed
	keep, err := h.answer(cn, wire)
	if !stop() || err != nil || !keep {
		_ = cn.Close()
		return err
	}
	h.client.put(cn)
	return nil
}

func (h *half) answer(cn *conn, wire []byte) (keep bool, err error) {
	if _, err := cn.Write(wire); err != nil {
		return false, err
	}
	first, err := readHead(&cn.buf)
	if err != nil {
		return false, err
	}
	if first.status != 200 {
		return false, fmt.Errorf("the prefill engine answered status %d", first.status)
	}
	for b := first.body(&cn.buf); ; {
		if _, err := b.next(); errors.Is(err, io.EOF) {
			return first.keep, nil
		} else if err != nil {
			return false, err
		}
	}
}
