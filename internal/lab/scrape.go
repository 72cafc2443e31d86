//go:build linux

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// fetch reads what a process answers at a URL.
func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.100s", url, resp.Status, body)
	}
	return body, err
}

// fetchTimeout bounds a view that a process has at once.
const fetchTimeout = 30 * time.Second

// FetchJSON reads a view of a gateway or an engine, within half a minute.
func FetchJSON(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := fetch(ctx, url)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}

// Scrape reads a gateway's metrics, by their names.
func Scrape(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := fetch(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("the gateway's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the gateway's metrics: %s: %w", url, err)
	}
	return families, nil
}

// SaveProfile writes to a file what a gateway answers at a URL of /debug/pprof.
func SaveProfile(ctx context.Context, url, file string) error {
	data, err := fetch(ctx, url)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// Sum returns the sum of a metric over its labels, 0 if there is none.
func Sum(f *dto.MetricFamily) (sum float64) {
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}
