package metrics

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/wire/http1"
)

const (
	// MaxScrapes is how many scrapes may be answered at once.
	MaxScrapes = 16
	// scrapeTimeout bounds the writing of an answer, unless the scraper announces a shorter
	// timeout.
	scrapeTimeout = 30 * time.Second
	// keepScrape is the largest buffer that is kept, in bytes.
	keepScrape = 4 << 20
)

// scrapes answers scrapers.
//
// Invariants: a scraper that reads slowly, or not at all, keeps no lock, no gathered
// metrics, and no more memory than its answer, and its connection ends after a bounded
// time. Therefore an answer is gathered and encoded before any of it is written. No stream
// waits for a scrape: encoding an answer, which takes some milliseconds, yields the core
// repeatedly (answered).
type scrapes struct {
	encode http.Handler
	turns  chan *buffers // for each that may begin now
	within time.Duration
}

// buffers are reused from scrape to scrape.
type buffers struct {
	plain, small bytes.Buffer
	gzip         *gzip.Writer // nil before the first that wants it
}

// Serve answers scrapers with the metrics of a registry, in each of Prometheus' formats:
// native histograms if they ask for protobuf. Metrics that cannot be gathered are left out,
// and counted in promhttp_metric_handler_errors_total.
func Serve(r *prometheus.Registry) http.Handler {
	encode := promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, Registry: r, DisableCompression: true})
	s := &scrapes{encode, make(chan *buffers, MaxScrapes), scrapeTimeout}
	for range MaxScrapes {
		s.turns <- new(buffers)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var buf *buffers
	select {
	case buf = <-s.turns:
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many scrapes are being answered; some of their scrapers read slowly", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		buf.plain.Reset()
		if buf.small.Reset(); buf.plain.Cap()+buf.small.Cap() > keepScrape {
			buf = new(buffers)
		}
		s.turns <- buf
	}()
	answer := answered{w.Header(), http.StatusOK, &buf.plain, 0}
	s.encode.ServeHTTP(&answer, r)
	body := buf.plain.Bytes()
	if w.Header().Add("Vary", "Accept-Encoding"); http1.TakesGzip(r.Header.Values("Accept-Encoding")) {
		body = buf.compress()
		w.Header().Set("Content-Encoding", "gzip")
	}
	// Writers that take no deadline have their own bound.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.patience(r)))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(answer.status)
	_, _ = w.Write(body) // it fails where the scraper is gone or slow, and nobody is to be told
}

// compress returns the answer as gzip. Its level takes a quarter of the default's time and
// makes the answer a sixth larger; compressed, it is an eighth of its size.
func (s *buffers) compress() []byte {
	if s.gzip == nil {
		s.gzip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // a level that exists
	}
	s.gzip.Reset(&s.small)
	for rest := s.plain.Bytes(); len(rest) > 0; {
		part := rest[:min(len(rest), pause)]
		_, _ = s.gzip.Write(part) // into memory
		rest = rest[len(part):]
		runtime.Gosched()
	}
	_ = s.gzip.Close() // into memory
	return s.small.Bytes()
}

// pause is after how many bytes others have their turn: it takes a tenth of a millisecond or two
// to make as many.
const pause = 16 << 10

// patience returns how long writing a scraper's answer may take. Prometheus announces its
// timeout.
func (s *scrapes) patience(r *http.Request) time.Duration {
	said, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(said > 0 && said < s.within.Seconds()) {
		return s.within
	}
	return time.Duration(said * float64(time.Second))
}

// answered is a ResponseWriter into memory that yields from time to time: encoding without
// a pause would keep a core from streams for milliseconds.
type answered struct {
	header http.Header
	status int
	body   *bytes.Buffer
	paused int // at so many bytes
}

// Header implements http.ResponseWriter.
func (a *answered) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answered) Write(b []byte) (int, error) {
	n, err := a.body.Write(b)
	if a.body.Len()-a.paused >= pause {
		a.paused = a.body.Len()
		runtime.Gosched()
	}
	return n, err
}
