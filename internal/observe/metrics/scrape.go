package metrics

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// MaxScrapes is how many scrapes may be answered at once.
	MaxScrapes = 16
	// scrapeTimeout bounds the writing of an answer, unless the scraper says that it
	// waits for less.
	scrapeTimeout = 30 * time.Second
	// keepScrape is what a buffer may hold that is kept, in bytes.
	keepScrape = 4 << 20
)

// scrapes answers scrapers.
//
// What must hold: a scraper that reads slowly, or not at all, keeps no lock, none of what
// was gathered, and no more memory than its answer, and its connection ends by a bound.
// So an answer is gathered and encoded before any of it is written.
type scrapes struct {
	encode http.Handler
	turns  chan *bytes.Buffer // for each scrape that may begin now, a buffer
	within time.Duration
}

// Serve answers scrapers with what a registry has, in each of Prometheus' formats: native
// histograms to those that ask for protobuf. What cannot be gathered is left out, and
// counted in promhttp_metric_handler_errors_total.
func Serve(r *prometheus.Registry) http.Handler {
	s := &scrapes{promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, Registry: r}), make(chan *bytes.Buffer, MaxScrapes), scrapeTimeout}
	for range MaxScrapes {
		s.turns <- new(bytes.Buffer)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var buf *bytes.Buffer
	select {
	case buf = <-s.turns:
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many scrapes are being answered; some of their scrapers read slowly", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		if buf.Reset(); buf.Cap() > keepScrape {
			buf = new(bytes.Buffer)
		}
		s.turns <- buf
	}()
	answer := answered{w.Header(), http.StatusOK, buf}
	s.encode.ServeHTTP(&answer, r)
	// Writers that take no deadline have their own bound.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.patience(r)))
	w.Header().Set("Content-Length", strconv.Itoa(buf.Len()))
	w.WriteHeader(answer.status)
	_, _ = w.Write(buf.Bytes()) // it fails where the scraper is gone or slow, and nobody is to be told
}

// patience is how long a scraper's answer may take to be written. Prometheus says how long
// it waits.
func (s *scrapes) patience(r *http.Request) time.Duration {
	said, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(said > 0 && said < s.within.Seconds()) {
		return s.within
	}
	return time.Duration(said * float64(time.Second))
}

// answered is a ResponseWriter into memory.
type answered struct {
	header http.Header
	status int
	body   *bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answered) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answered) Write(b []byte) (int, error) { return a.body.Write(b) }
