package gateway

import (
	"testing"
	"time"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/models"
)

// heldBench is a gateway before engines that each have room for so many requests.
func heldBench(b *testing.B, o place.Queueing, engines, most int) *Gateway {
	all := make([]any, engines)
	for i := range all {
		all[i] = &tokenEngine{name: string(rune('a' + i)), most: most}
	}
	snap := fleetOf(make(chan struct{}), all...)
	snap.Models[models.SimName].Policy = new(balance.Cost)
	g := New(Options{Place: PlaceOptions{Queue: o}, Snapshot: func() *route.Snapshot { return snap }, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}})
	b.Cleanup(g.Close)
	return g
}

// BenchmarkIdleQueue is stages 5 and 6 of a request for which there is room, with the booking
// and its end, with the queue and without it: the difference is the queue's.
func BenchmarkIdleQueue(b *testing.B) {
	for name, o := range map[string]place.Queueing{"off": {Off: true}, "on": {}} {
		b.Run(name, func(b *testing.B) {
			g := heldBench(b, o, 4, 100)
			x := chatExchange(b, g)
			if _, err := x.prepare([]byte(askChat(``))); err != nil {
				b.Fatal(err)
			}
			defer x.prepared.Reservation.Leave()
			b.ReportAllocs()
			for b.Loop() {
				x.stream.Record.Attempts = x.stream.Record.Attempts[:0]
				if err := x.place(); err != nil {
					b.Fatal(err)
				}
				x.try.End(&infer.Error{Code: infer.CodeEngine})
			}
		})
	}
}

// BenchmarkRefused is all that the gateway does of a request that is refused because as many
// wait as may, once its body is there.
func BenchmarkRefused(b *testing.B) {
	g := heldBench(b, place.Queueing{Requests: 1}, 1, 1)
	running := chatExchange(b, g)
	waits := chatExchange(b, g)
	for _, x := range []*exchange{running, waits} {
		if _, err := x.prepare([]byte(askChat(``))); err != nil {
			b.Fatal(err)
		}
		defer x.prepared.Reservation.Leave()
	}
	if err := running.place(); err != nil {
		b.Fatal(err)
	}
	left := make(chan error)
	go func() { left <- waits.place() }()
	for g.queued()[models.SimName].Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	b.ReportAllocs()
	for b.Loop() {
		x := chatExchange(b, g)
		if _, err := x.prepare([]byte(askChat(``))); err == nil || infer.AsError(err).Reason != "queue_full" {
			b.Fatal(err)
		}
	}
	waits.End(nil)
	<-left
	running.try.End(&infer.Error{Code: infer.CodeEngine})
}
