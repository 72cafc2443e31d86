//go:build linux

package scenario

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// canaryGap is how often the canary asks.
const canaryGap = 5 * time.Millisecond

// canary asks again and again until ctx ends, and gives how long each answer
// took, in milliseconds and in order of size. Asked for what takes a gateway no
// work (page), what an answer takes longer than on an idle machine is how long
// the gateway's I/O stood still, or this process waited for a core: an upper
// bound of the former.
func canary(ctx context.Context, ask func() error) ([]float64, error) {
	tick := time.NewTicker(canaryGap)
	defer tick.Stop()
	var took []float64
	for {
		select {
		case <-ctx.Done():
			slices.Sort(took)
			return took, nil
		case <-tick.C:
		}
		began := time.Now()
		if err := ask(); err != nil {
			return nil, fmt.Errorf("canary: %w", err)
		}
		took = append(took, time.Since(began).Seconds()*1000)
	}
}

// page asks for a page over one connection; done closes it.
func page(url string) (ask func() error, done func()) {
	client := http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 30 * time.Second}
	return func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}, client.CloseIdleConnections
}

// percentile is the value that a share of sorted values does not exceed; 0 of
// none.
func percentile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1))]
}
