//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"weir/internal/lab"
)

// watching is the first argument of a process that observes a gateway. The others are the
// address of the gateway's admin listener, and the paths to fetch there each second.
const watching = "watch"

// watcher is a process that observes a gateway.
type watcher struct {
	self    []string
	process *lab.Process
	spans   int
}

// start starts the process, and returns its collector's address.
func (w *watcher) start(admin string, paths []string) (collector string, err error) {
	w.stop() // one of a cell that is measured again may still run
	if w.process, err = lab.Start(slices.Concat([]string{"nice", "-n", "19"}, w.self, []string{watching, admin, strings.Join(paths, " ")}), lab.Environment()); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return w.process.AwaitLine(ctx, "collector ")
}

// stop ends the process, and returns the number of spans that its collector has taken.
func (w *watcher) stop() int {
	if p := w.process; p != nil {
		w.process = nil
		p.Interrupt()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		out, _ := p.Wait(ctx) // without its last line it has taken none
		if _, said, ok := strings.Cut(string(out), "spans "); ok {
			w.spans, _ = strconv.Atoi(strings.TrimSpace(said)) // it is a number that watch has printed
		}
		p.Stop()
	}
	return w.spans
}

// watch is the body of the process. It ends at an interrupt.
func watch(admin, paths string) error {
	collector, err := collect()
	if err != nil {
		return err
	}
	defer collector.server.Stop()
	fmt.Println("collector " + collector.addr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ask(ctx, admin, strings.Fields(paths))
	fmt.Printf("spans %d\n", collector.taken.Load())
	return nil
}

// ask fetches some pages of an admin listener once a second, each to its end, until ctx ends.
func ask(ctx context.Context, admin string, paths []string) {
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
		}
		for _, path := range paths {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, nil)
			if err != nil {
				return
			}
			if resp, err := http.DefaultClient.Do(req); err == nil { // it may not be up, or be gone
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
	}
}

// taker is a collector of spans. It counts them and keeps none.
type taker struct {
	addr   string
	server *grpc.Server
	taken  atomic.Int64 // spans
}

func collect() (*taker, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &taker{addr: l.Addr().String(), server: grpc.NewServer()}
	t.server.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			r := &collectorpb.ExportTraceServiceRequest{}
			if err := decode(r); err != nil {
				return nil, err
			}
			for _, of := range r.GetResourceSpans() {
				for _, s := range of.GetScopeSpans() {
					t.taken.Add(int64(len(s.GetSpans())))
				}
			}
			return &collectorpb.ExportTraceServiceResponse{}, nil
		}}}}, nil)
	go func() { _ = t.server.Serve(l) }() // it ends with the server
	return t, nil
}
