package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/dialect/openai"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/model"
	"weir/internal/model/pool"
	"weir/internal/tenancy"
	"weir/internal/trace"
	"weir/models"
)

// BenchmarkSmallBesideLarge measures how long a chat of 2 KB, and one of 100 KB, waits
// for its ids beside sixteen senders of chats of 8 MiB, and how many of those are done
// meanwhile. Refused are chats of 8 MiB that do not fit the model. The control has no
// lane for small prompts.
func BenchmarkSmallBesideLarge(b *testing.B) {
	chat := func(content string) []byte {
		body, err := json.Marshal(map[string]any{"model": models.SimName, "max_tokens": 1, "messages": []map[string]string{{"role": "user", "content": content}}})
		if err != nil {
			b.Fatal(err)
		}
		return body
	}
	source := sourceText(b, 1<<20)
	source = strings.Repeat(source, 8<<20/len(source)+1)
	for _, c := range []struct {
		name string
		o    pool.Options
	}{{"lane", pool.Options{Workers: 1}}, {"control", pool.Options{Workers: 1, Lane: -1}}} {
		for _, size := range []int{2 << 10, 100 << 10} {
			b.Run(fmt.Sprintf("%s/%d KB", c.name, size>>10), func(b *testing.B) {
				besideLarge(b, c.o, chat(source[:8<<20]), chat(source[:size]))
			})
		}
	}
}

func besideLarge(b *testing.B, o pool.Options, large, small []byte) {
	folder, err := model.Load(models.Sim())
	if err != nil {
		b.Fatal(err)
	}
	folder.ContextLength = 64 << 20
	e := &route.Engine{Name: "a", Kind: "weir", Tokens: &tokenEngine{name: "a"}, Ready: true}
	snap := &route.Snapshot{Models: map[string]*route.Model{models.SimName: {Name: models.SimName, ByIDs: route.Side{Kind: "weir"}, Policy: new(balance.RoundRobin),
		Targets: []route.Target{{Engine: e, Rank: route.Whole("a"), Model: models.SimName}}}}}
	g := New(Options{Prepare: prepare.Options{PrefixCache: -1, Pool: o, Models: map[string]*model.Folder{models.SimName: folder}}, Snapshot: func() *route.Snapshot { return snap }})
	defer g.Close()
	prepare := func(ctx context.Context, body []byte) (*exchange, error) {
		x := &exchange{g: g, caller: tenancy.Anyone, endpoint: openai.Chat}
		x.stream.Record.Record = new(trace.Record)
		defer context.AfterFunc(ctx, func() { x.stream.Ctx.End(nil) })()
		x.stream.Response.Served = &front.Served{Request: &http.Request{URL: &url.URL{Path: chatPath}}}
		_, err := x.prepare(body)
		if x.prepared.Reservation != nil {
			x.prepared.Reservation.Leave()
		}
		return x, err
	}
	ctx, cancel := context.WithCancel(b.Context())
	var senders sync.WaitGroup
	var done atomic.Int64
	for range 16 {
		senders.Go(func() {
			for ctx.Err() == nil {
				if _, err := prepare(ctx, large); err == nil {
					done.Add(1)
				}
			}
		})
	}
	for g.preparer.Pool.Waiting() < 15 || done.Load() < 1 {
		time.Sleep(time.Millisecond)
	}
	began, before := time.Now(), done.Load()
	var waits, totals []time.Duration
	for b.Loop() {
		at := time.Now()
		x, err := prepare(ctx, small)
		if err != nil {
			b.Fatal(err)
		}
		totals = append(totals, time.Since(at))
		waits = append(waits, time.Duration(x.stream.Record.Ledger.Spent[trace.PoolWait]))
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(began)
	b.ReportMetric(float64(done.Load()-before)/took.Seconds(), "large/s")
	cancel()
	senders.Wait()
	for name, all := range map[string][]time.Duration{"wait": waits, "ids": totals} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2])/1e6, name+"-p50-ms")
		b.ReportMetric(float64(all[len(all)*99/100])/1e6, name+"-p99-ms")
		b.ReportMetric(float64(all[len(all)-1])/1e6, name+"-max-ms")
	}
}
