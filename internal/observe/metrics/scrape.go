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
// So an answer is gathered and encoded before any of it is written. No stream waits for a
// scrape: an answer of some milliseconds gives the core away again and again (answered).
type scrapes struct {
	encode http.Handler
	turns  chan *buffers // for each that may begin now
	within time.Duration
}

// buffers are what a scrape needs, and the next one uses again.
type buffers struct {
	plain, small bytes.Buffer
	gzip         *gzip.Writer // nil before the first that wants it
}

// Serve answers scrapers with what a registry has, in each of Prometheus' formats: native
// histograms to those that ask for protobuf. What cannot be gathered is left out, and
// counted in promhttp_metric_handler_errors_total.
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

// compress returns the answer as gzip: at a level that takes a quarter of the default's time for a
// sixth more bytes, which are an eighth of the answer.
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

// patience is how long a scraper's answer may take to be written. Prometheus says how long
// it waits.
func (s *scrapes) patience(r *http.Request) time.Duration {
	said, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(said > 0 && said < s.within.Seconds()) {
		return s.within
	}
	return time.Duration(said * float64(time.Second))
}

// answered is a ResponseWriter into memory, which lets others have their turn now and then:
// what is encoded at once would keep a core from streams for milliseconds.
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
