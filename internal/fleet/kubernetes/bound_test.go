package kubernetes

import (
	"context"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/internal/lab/kubeapi"
)

// BenchmarkBoundThousand has a thousand engines, of which fifty change each second, over
// TLS. Each change must be seen within half a second. The CPU and the memory are those of
// the server too.
func BenchmarkBoundThousand(b *testing.B) {
	const pods, rate, seconds = 1000, 50, 10
	api := kubeapi.New("")
	address := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }
	for i := range pods {
		api.Put(podsPath, podObject(fmt.Sprintf("pod-%04d", i), address(i), "True"))
	}
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	var mu sync.Mutex
	asked := map[string]time.Time{} // when a pod stopped to be ready
	var late []time.Duration
	complete := make(chan struct{}, 1)
	s := New(Options{
		Query: Query{Selector: Selector{"app=vllm"}}, Namespace: "models", Access: Access{Server: server.URL, Insecure: true},
		Changed: func(_ Kind, err error) {
			if err != nil {
				b.Error(err)
			}
		},
		Found: func(engines []*Engine, _ []string) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range engines {
				if at, ok := asked[e.Name]; ok && e.Drained != "" {
					late = append(late, time.Since(at))
					delete(asked, e.Name)
				}
			}
			if len(engines) == pods {
				select {
				case complete <- struct{}{}:
				default:
				}
			}
		},
	})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer cancel()
	select {
	case <-complete:
	case <-time.After(10 * time.Second):
		b.Fatal("the pods are not listed in 10 s")
	}
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for b.Loop() {
		late = nil
		before := cpu()
		tick := time.NewTicker(time.Second / rate)
		for i := range rate * seconds {
			<-tick.C
			name := fmt.Sprintf("pod-%04d", i)
			mu.Lock()
			asked[name] = time.Now()
			mu.Unlock()
			api.Put(podsPath, podObject(name, address(i), "False"))
		}
		tick.Stop()
		b.ReportMetric(100*float64(cpu()-before)/float64(seconds*time.Second), "%core")
		time.Sleep(time.Second)
		for i := range rate * seconds {
			api.Put(podsPath, podObject(fmt.Sprintf("pod-%04d", i), address(i), "True"))
		}
		time.Sleep(time.Second)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) > 0 || len(late) == 0 {
		b.Fatalf("%d changes were not seen", len(asked))
	}
	slices.Sort(late)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(late[len(late)-1].Milliseconds()), "max-ms")
	b.ReportMetric(float64(m.Sys)/1e6, "MB")
	if most := late[len(late)-1]; most > 500*time.Millisecond {
		b.Errorf("a change was seen after %v", most)
	}
}
