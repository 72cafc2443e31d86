package front

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// late is a response whose client does not read: a write ends with its deadline,
// and by then net/http has ended the request's context.
type late struct {
	http.ResponseWriter
	hangUp context.CancelFunc
}

func (l late) Write([]byte) (int, error) {
	l.hangUp()
	return 0, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}
}

// net/http's reaction to a write that took too long is not a hang-up.
func TestUnreadIsNoHangUp(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	w := late{httptest.NewRecorder(), hangUp}
	c := &HTTPCarrier{served: Served{Writer: w, Controller: *http.NewResponseController(w)}, buffers: newBuffers()}
	whole, err := c.Send(nil, []byte("x"), false)
	if err == nil && !whole {
		err = c.Rest()
	}
	if got := infer.AsError(Lost(ctx, err, time.Second)); got.Code != infer.CodeSlowClient {
		t.Errorf("%v: %v", err, got)
	}
}

// slow is a body that does not come: a read ends with its deadline, and by then net/http has ended
// the request's context.
type slow struct {
	after  time.Duration
	hangUp context.CancelFunc
}

func (s slow) Read([]byte) (int, error) {
	time.Sleep(s.after)
	s.hangUp()
	return 0, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
}

func (slow) Close() error { return nil }

// net/http's reaction to a body that is late is not a hang-up. One before the deadline is.
func TestLateBodyIsNoHangUp(t *testing.T) {
	for after, want := range map[time.Duration]infer.Code{29 * time.Second: infer.CodeCancelled, 30 * time.Second: infer.CodeBodyTimeout} {
		synctest.Test(t, func(t *testing.T) {
			ctx, hangUp := context.WithCancel(t.Context())
			r := httptest.NewRequest("POST", "/v1/chat/completions", slow{after, hangUp})
			r.ContentLength = 100
			opts := Options{BodyTimeout: 30 * time.Second, UploadTimeout: time.Minute, UploadRate: 1, MaxBody: 1000}
			u := upload{who: tenancy.Anyone, r: r, rc: http.NewResponseController(httptest.NewRecorder()), opts: &opts, began: time.Now()}
			_, err := u.read(ctx, admission.NewBodies(1<<20, nil), new(admission.Body))
			if got := infer.AsError(u.failure(ctx, err)); got.Code != want {
				t.Errorf("after %v: %v: %v, want %v", after, err, got, want)
			}
		})
	}
}
