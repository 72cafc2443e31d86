package simserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
)

// TestFenceCounts is that a fence says what was computed, for whomever, and no more while
// nothing is.
func TestFenceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{Cost: sim.Constant{Prefill: time.Second, Decode: time.Second}}})
		conn := b.planeClient()
		defer conn.Close()
		client := planepb.NewPlaneClient(conn)
		computed := func() uint64 {
			r, err := client.Fence(t.Context(), &planepb.FenceRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetComputed()
		}
		if n := computed(); n != 0 {
			t.Errorf("new, it has computed %d", n)
		}
		g := b.dial(1, 0)
		if err := g.submit(1, 2); err != nil {
			t.Fatal(err)
		}
		g.until(1)
		n := computed()
		if n == 0 || computed() != n {
			t.Errorf("it has computed %d, and then another number", n)
		}
		b.faults("noprefill")
		if err := g.submit(2, 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if m := computed(); m != n {
			t.Errorf("it has computed %d, and %d more with no prefill", n, m-n)
		}
	})
}

// A fence is answered between two steps: at once by an idle engine, after its step by a
// busy one, and not at all by one that hangs or has a rank that does.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{DPSize: 2, Cost: sim.Constant{Prefill: 8 * time.Second, Decode: time.Second}}})
		conn := b.planeClient()
		defer conn.Close()
		client := planepb.NewPlaneClient(conn)
		took := func(bound time.Duration) (time.Duration, codes.Code) {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			began := time.Now()
			_, err := client.Fence(ctx, &planepb.FenceRequest{})
			return time.Since(began), status.Code(err)
		}
		if d, code := took(time.Minute); code != codes.OK || d != 0 {
			t.Errorf("idle: %v after %v", code, d)
		}
		g := b.dial(1, 0)
		if err := g.submit(1, 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if d, code := took(time.Minute); code != codes.OK || d != 7*time.Second {
			t.Errorf("busy: %v after %v", code, d)
		}
		g.until(1)
		for _, fault := range []string{"wedge", "wedge,rank=1"} {
			b.faults(fault)
			if d, code := took(time.Minute); code != codes.DeadlineExceeded || d != time.Minute {
				t.Errorf("%s: %v after %v", fault, code, d)
			}
			if _, err := client.Describe(t.Context(), &planepb.DescribeRequest{}); err != nil {
				t.Errorf("%s: %v", fault, err)
			}
			answered := make(chan codes.Code)
			go func() {
				_, code := took(time.Hour)
				answered <- code
			}()
			time.Sleep(time.Second)
			b.faults()
			if code := <-answered; code != codes.OK {
				t.Errorf("after %s: %v", fault, code)
			}
		}
	})
}
