// Package vllmserver reads what vLLM's own HTTP server (`vllm serve`) reports: its release,
// its endpoints, its load, and the addresses at which its ranks publish KV cache events.
package vllmserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/trace"
)

// Owner is what the server's model list says under owned_by.
const Owner = "vllm"

// Release is the number of a release; zero where a build has none, or none is known.
type Release struct{ Major, Minor int }

// ParseRelease reads the first two numbers of "0.33.0" or "0.34.1rc1.dev7+g0123".
func ParseRelease(s string) (r Release) {
	if n, _ := fmt.Sscanf(s, "%d.%d", &r.Major, &r.Minor); n < 2 {
		return Release{}
	}
	return r
}

// Before reports whether a release is older than another. One without a number is not.
func (r Release) Before(o Release) bool {
	return r != Release{} && (r.Major < o.Major || r.Major == o.Major && r.Minor < o.Minor)
}

// String returns the number.
func (r Release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }

// The releases whose definitions of the wire were compared (docs/engines.md).
var (
	// WithIDs is the first whose /v1/completions gives ids and takes every field that weir
	// sends: what it does not know a release passes over without a word.
	WithIDs = Release{0, 12}
	// WithGenerate is the first whose /inference/v1/generate does.
	WithGenerate = Release{0, 32}
	// Newest is the last.
	Newest = Release{0, 33}
)

// VersionPath is where a server states its version.
const VersionPath = "/version"

// Version reads the version of a server; empty where it has none.
func Version(ctx context.Context, c *upstream.Client) (string, error) {
	data, _, err := c.Get(ctx, VersionPath)
	var said struct {
		Version string `json:"version"`
	}
	if err == nil {
		err = json.Unmarshal(data, &said)
	}
	return said.Version, err
}

// GeneratePath is the endpoint that takes ids and gives nothing but ids.
const GeneratePath = "/inference/v1/generate"

// ScaleOut is the flag that a server is started with to have GeneratePath.
const ScaleOut = "--enable-scale-out"

// CompletionsPath is the endpoint that takes ids, and gives them beside text.
const CompletionsPath = "/v1/completions"

// Serves reports whether a server has one of the two endpoints. It sends a request
// without a prompt, which a server with the endpoint refuses and a server without
// ScaleOut forbids.
func Serves(ctx context.Context, c *upstream.Client, path string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	header := http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"weir"}}
	resp, err := c.Do(ctx, &upstream.Request{Method: http.MethodPost, Path: path, Header: header, Body: []byte("{}"), Leg: &trace.Leg{}})
	if err != nil {
		return false, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)); err != nil {
		return false, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	switch resp.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return true, nil
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return false, nil
	}
	return false, fmt.Errorf("probe %s: status %d", c.URL(path), resp.Status)
}

// maxRanks bounds the data-parallel ranks of a server that are believed.
const maxRanks = 1024

// KVEventsPath is where a server states that.
const KVEventsPath = "/kv_event_sources"

// KVEvents reads where each rank publishes what its KV cache holds, by its number.
func KVEvents(ctx context.Context, c *upstream.Client, host string) (map[int]engine.KVEvents, error) {
	data, _, err := c.Get(ctx, KVEventsPath)
	if err != nil {
		return nil, err
	}
	return parseKVEvents(data, host)
}

func parseKVEvents(data []byte, host string) (map[int]engine.KVEvents, error) {
	var said map[string]*struct {
		On        bool    `json:"enable_kv_cache_events"`
		Publisher string  `json:"publisher"`
		Endpoint  string  `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
		Topic     string  `json:"topic"`
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", KVEventsPath, err)
	}
	sources := map[int]engine.KVEvents{}
	for name, s := range said {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 || rank >= maxRanks || s == nil || !s.On || s.Publisher != "zmq" || s.Endpoint == "" {
			continue
		}
		e := engine.KVEvents{Endpoint: s.Endpoint, Topic: s.Topic, Host: host}
		if s.Replay != nil {
			e.Replay = *s.Replay
		}
		sources[rank] = e
	}
	return sources, nil
}

// Figures are what a server's metrics say.
type Figures struct {
	Load  engine.Load // of all its engines
	Ranks []RankFigures
	// Started is when the server's process began, in its own words; empty: it does not say.
	Started string
}

// RankFigures are those of one engine, which is a data-parallel rank.
type RankFigures struct {
	Number   int
	KVTokens int // capacity of its KV cache, 0 when not reported
}

// MetricsPath is where a server has its metrics.
const MetricsPath = "/metrics"

// errNoFigures is the error of metrics that are none of vLLM's.
var errNoFigures = errors.New("they say nothing of vLLM's requests")

// Metrics reads a server's metrics. had are those that the same server has had before, if it has:
// a page that lacks some of them is not all of it.
func Metrics(ctx context.Context, c *upstream.Client, had *Figures) (*Figures, error) {
	var s sums
	if err := c.Lines(ctx, MetricsPath, s.line); err != nil {
		return nil, err
	}
	f := s.figures()
	switch {
	case f == nil:
		return nil, errNoFigures
	case f.lack(had):
		return nil, upstream.ErrHalf
	}
	return f, nil
}

// lack reports whether figures lack some of those that the same process has had before.
func (f *Figures) lack(had *Figures) bool {
	switch {
	case had == nil || f.Started != "" && f.Started != had.Started:
		return false
	case f.Started != had.Started || f.Load.KVUsage < 0 && had.Load.KVUsage >= 0:
		return true
	}
	return slices.ContainsFunc(had.Ranks, func(r RankFigures) bool {
		return !slices.ContainsFunc(f.Ranks, func(now RankFigures) bool { return now.Number == r.Number && (now.KVTokens > 0 || r.KVTokens == 0) })
	})
}

// sums adds up the figures among metrics in Prometheus' text format, which have a line for each of
// the server's engines. A server has a thousand lines, of which five or so are read.
type sums struct {
	running, waiting, usage float64
	engines, usages         int
	started                 string
	ranks                   map[int]*RankFigures
	loads                   map[int]*engine.RankLoad
}

// line adds a line. Nearly all are of other metrics, and seen to be by one letter.
func (s *sums) line(line []byte) {
	if len(line) <= len(prefix) {
		return
	}
	switch line[len(prefix)] {
	case 'n', 'k', 'g', 'c':
	case startTime[len(prefix)]:
		if value, ok := bytes.CutPrefix(line, []byte(startTime+" ")); ok {
			s.started = string(bytes.TrimSpace(value))
		}
		return
	default:
		return
	}
	name, rest, _ := bytes.Cut(line, []byte{'{'})
	switch string(name) {
	case numRunning, numWaiting, cacheUsage, gpuCacheUsage, cacheConfig:
		s.add(string(name), string(rest))
	}
}

// The metrics that are read.
const (
	prefix        = "vllm:" // of each
	numRunning    = "vllm:num_requests_running"
	numWaiting    = "vllm:num_requests_waiting"
	cacheUsage    = "vllm:kv_cache_usage_perc"
	gpuCacheUsage = "vllm:gpu_cache_usage_perc" // up to 0.10
	cacheConfig   = "vllm:cache_config_info"
	startTime     = "process_start_time_seconds" // not of a server of several processes
)

func (s *sums) add(name, rest string) {
	labels, value, _ := cutLast(rest, '}')
	fields := strings.Fields(value)
	if len(fields) == 0 {
		return
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !(v >= 0 && v < 1<<53) { // NaN too
		return
	}
	if s.ranks == nil {
		s.ranks, s.loads = map[int]*RankFigures{}, map[int]*engine.RankLoad{}
	}
	of := new(engine.RankLoad)
	if n, ok := number(labels, "engine"); ok {
		if s.loads[n] == nil {
			s.loads[n] = &engine.RankLoad{Rank: n, KVUsage: -1}
		}
		of = s.loads[n]
	}
	switch name {
	case numRunning:
		s.running += v
		of.Running += int(v) // of processes that have series of their own (pid), all
		s.engines++
		if n, ok := number(labels, "engine"); ok {
			rankOf(s.ranks, n)
		}
	case numWaiting:
		s.waiting += v
		of.Waiting += int(v)
	case cacheUsage, gpuCacheUsage:
		s.usage += v
		of.KVUsage = v
		s.usages++
	case cacheConfig:
		n, _ := number(labels, "engine")
		blocks, _ := number(labels, "num_gpu_blocks")
		size, _ := number(labels, "block_size")
		if tokens := blocks * size; tokens <= math.MaxInt32 {
			rankOf(s.ranks, n).KVTokens = tokens
		}
	}
}

// figures returns what the lines say; nil: they are none of vLLM's.
func (s *sums) figures() *Figures {
	if s.engines == 0 {
		return nil
	}
	f := &Figures{Started: s.started, Load: engine.Load{Running: int(s.running), Waiting: int(s.waiting), KVUsage: -1}}
	if s.usages > 0 {
		f.Load.KVUsage = s.usage / float64(s.usages)
	}
	for _, n := range slices.Sorted(maps.Keys(s.ranks)) {
		f.Ranks = append(f.Ranks, *s.ranks[n])
		if l := s.loads[n]; l != nil && len(s.ranks) > 1 {
			f.Load.Ranks = append(f.Load.Ranks, *l)
		}
	}
	return f
}

func rankOf(ranks map[int]*RankFigures, n int) *RankFigures {
	if ranks[n] == nil {
		ranks[n] = &RankFigures{Number: n}
	}
	return ranks[n]
}

// Apart returns the number of ranks of a server that a request can choose: the number of its
// engines if these are numbered from 0, and otherwise 0. A server that is one of several,
// each with its own rank, has an engine with another number.
func (f *Figures) Apart() int {
	if f == nil || len(f.Ranks) < 2 || f.Ranks[len(f.Ranks)-1].Number != len(f.Ranks)-1 {
		return 0
	}
	return len(f.Ranks)
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// number reads a label that is a number.
func number(labels, name string) (int, bool) {
	for label := range strings.SplitSeq(labels, ",") {
		key, value, _ := strings.Cut(label, "=")
		if key != name {
			continue
		}
		n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
		if err != nil || name == "engine" && n >= maxRanks {
			return 0, false
		}
		return int(n), true
	}
	return 0, false
}
