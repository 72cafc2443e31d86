package timeline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/trace"
)

// A follower is given every record added after it began, until it leaves or the
// recorder is closed.
func TestFollow(t *testing.T) {
	for _, leave := range []bool{true, false} {
		r, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		r.Add(sample("before"))
		ctx, cancel := context.WithCancel(t.Context())
		out, in := io.Pipe()
		began := make(chan struct{})
		ended := make(chan error)
		first := true
		go func() {
			ended <- r.Follow(ctx, in, func() error {
				if first {
					first = false
					close(began)
				}
				return nil
			})
		}()
		<-began
		lines := bufio.NewScanner(out)
		for i := range 100 {
			r.Add(sample(fmt.Sprint("r-", i)))
			if i%10 == 9 { // several wait, and none is left out
				for k := i - 9; k <= i; k++ {
					if !lines.Scan() {
						t.Fatal(lines.Err())
					}
					var got struct {
						ID string `json:"request_id"`
					}
					if err := json.Unmarshal(lines.Bytes(), &got); err != nil || got.ID != fmt.Sprint("r-", k) {
						t.Fatalf("%q, %v; want r-%d", got.ID, err, k)
					}
				}
			}
		}
		if leave {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if !leave {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		cancel()
		if len(r.followers) != 0 {
			t.Error("a follower is left")
		}
		// Who comes after the end is not kept waiting.
		if err := r.Follow(t.Context(), io.Discard, func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

// A follower that does not read keeps nobody waiting, and is told what it
// missed; one that cannot be written to is let go.
func TestFollowSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := make(chan struct{})
		var text strings.Builder
		n := 0
		ended := make(chan error)
		go func() {
			ended <- r.Follow(ctx, &text, func() error {
				if n++; n == 1 {
					<-began
				} else {
					cancel()
				}
				return nil
			})
		}()
		rec := &trace.Record{RequestID: "x"}
		synctest.Wait() // it follows
		for range followQueue + 5 {
			r.Add(rec)
		}
		close(began)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := strings.Count(text.String(), "\n"); got != followQueue+1 || !strings.HasSuffix(text.String(), "{\"dropped\":5}\n") {
			t.Errorf("%d lines, the last %q", got, text.String()[text.Len()-40:])
		}
		broken := errors.New("broken")
		if err := r.Follow(t.Context(), io.Discard, func() error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}
