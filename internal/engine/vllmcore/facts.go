package vllmcore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/infer"
)

// hello is an engine's word on the handshake socket.
type hello struct {
	status string // "HELLO" or "READY"
}

func decodeHello(b []byte) (h hello, err error) {
	rest, err := eachField(b, func(name, b []byte) ([]byte, error) {
		if string(name) != "status" {
			return msgp.Skip(b)
		}
		var err error
		h.status, b, err = msgp.ReadStringBytes(b)
		return b, err
	})
	switch {
	case err != nil:
		return hello{}, err
	case len(rest) > 0:
		return hello{}, fmt.Errorf("%d bytes after the end", len(rest))
	case h.status == "":
		return hello{}, errors.New("no status")
	}
	return h, nil
}

// ready is what an engine says of itself once it can serve.
type ready struct {
	contextLength int    // max_model_len, after the engine fitted it to its memory
	maxRunning    int    // max_num_seqs; 0: not reported
	version       string // empty: not said
	instance      string
	dataParallel  int // its group's size; 0: not reported
	blocks        int // num_gpu_blocks, of blockSize tokens; 0: not reported
	blockSize     int
	stepTokens    int  // max_num_batched_tokens; 0: not reported
	lora          bool // unless it says that it was started without
	events        engine.KVEvents
}

// kvTokens is how many tokens the engine's KV cache holds, 0 if not reported.
func (r *ready) kvTokens() int {
	if r.blocks < 0 || r.blockSize < 0 || r.blocks > math.MaxInt32/max(r.blockSize, 1) {
		return 0
	}
	return r.blocks * r.blockSize
}

func decodeReady(b []byte) (r ready, err error) {
	if len(b) == 0 {
		return ready{}, errors.New("the engine does not describe itself, as before vLLM " + oldest.String())
	}
	number := func(to *int, b []byte) ([]byte, error) {
		n, b, err := msgp.ReadIntBytes(b)
		*to = n
		return b, err
	}
	word := func(to *string, b []byte) (rest []byte, err error) {
		if msgp.IsNil(b) {
			return msgp.ReadNilBytes(b)
		}
		*to, rest, err = msgp.ReadStringBytes(b)
		return rest, err
	}
	// It is of no use to requests, and so nothing that it is makes the engine unusable.
	hint := func(to *int, b []byte) ([]byte, error) {
		if rest, err := number(to, b); err == nil {
			return rest, nil
		}
		return msgp.Skip(b)
	}
	r.lora = true
	rest, err := eachField(b, func(name, b []byte) ([]byte, error) {
		switch string(name) {
		case "supports_lora":
			var err error
			r.lora, b, err = msgp.ReadBoolBytes(b)
			return b, err
		case "max_model_len":
			return number(&r.contextLength, b)
		case "max_num_seqs":
			return number(&r.maxRunning, b)
		case "num_gpu_blocks":
			return hint(&r.blocks, b)
		case "block_size":
			return hint(&r.blockSize, b)
		case "max_num_batched_tokens":
			return hint(&r.stepTokens, b)
		case "data_parallel_size":
			return number(&r.dataParallel, b)
		case "vllm_version":
			return word(&r.version, b)
		case "instance_id":
			return word(&r.instance, b)
		case "kv_events_config":
			events, err := readEvents(b)
			if err == nil { // a hint, too
				r.events = events
			}
		}
		return msgp.Skip(b)
	})
	switch {
	case err != nil:
		return ready{}, fmt.Errorf("the engine's word of itself cannot be read: %w", err)
	case len(rest) > 0:
		return ready{}, fmt.Errorf("the engine's word of itself has %d bytes after its end", len(rest))
	case r.contextLength <= 0:
		return ready{}, errors.New("the engine does not say its max_model_len, as before vLLM " + oldest.String())
	}
	return r, nil
}

// readEvents reads where an engine publishes what its KV cache holds, since vLLM 0.32.
func readEvents(b []byte) (e engine.KVEvents, err error) {
	if msgp.IsNil(b) {
		return e, nil
	}
	on, publisher := false, ""
	_, err = eachField(b, func(name, b []byte) ([]byte, error) {
		var err error
		switch {
		case msgp.IsNil(b):
			return msgp.ReadNilBytes(b)
		case string(name) == "enable_kv_cache_events":
			on, b, err = msgp.ReadBoolBytes(b)
		case string(name) == "publisher":
			publisher, b, err = msgp.ReadStringBytes(b)
		case string(name) == "endpoint":
			e.Endpoint, b, err = msgp.ReadStringBytes(b)
		case string(name) == "replay_endpoint":
			e.Replay, b, err = msgp.ReadStringBytes(b)
		case string(name) == "topic":
			e.Topic, b, err = msgp.ReadStringBytes(b)
		default:
			return msgp.Skip(b)
		}
		return b, err
	})
	if err != nil || !on || publisher != "zmq" {
		return engine.KVEvents{}, err
	}
	return e, nil
}

// kvEvents is where an engine publishes what its KV cache holds. Each rank says it of
// itself, so that its port is the rank's own.
func (s *session) kvEvents() engine.KVEvents {
	e := s.ready.events
	if e.Endpoint != "" {
		e.BlockTokens, e.Host = max(s.ready.blockSize, 0), s.peer
	}
	return e
}

// version is a release of vLLM.
type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

// oldest and newest are the releases between which the wire's definitions were
// compared (docs/engines.md). An older release is refused. A newer one is reported to
// the operator.
var (
	oldest = version{0, 20}
	newest = version{0, 33}
)

// selfWaking is the first release known in which an engine tells the coordinator
// itself that it was given work.
var selfWaking = version{0, 33}

func (v version) before(o version) bool {
	return v.major < o.major || v.major == o.major && v.minor < o.minor
}

// parseVersion reads the first two numbers of "0.33.0" or "0.34.1rc1.dev7+g0123".
func parseVersion(s string) (v version, ok bool) {
	major, rest, _ := strings.Cut(s, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if end := strings.IndexFunc(minor, func(r rune) bool { return r < '0' || r > '9' }); end > 0 {
		minor = minor[:end]
	}
	var err1, err2 error
	v.major, err1 = strconv.Atoi(major)
	v.minor, err2 = strconv.Atoi(minor)
	return v, err1 == nil && err2 == nil
}

// judge reports whether an engine of this version is supported, and a warning if any.
// Releases up to 0.20 do not report their version; what they do report distinguishes
// them from older ones.
func (r *ready) judge(coordinated bool) (warning string, err error) {
	v, ok := parseVersion(r.version)
	if coordinated && (r.version == "" || ok && v != version{} && v.before(selfWaking)) {
		return "", fmt.Errorf("data-parallel ranks of vLLM %s are woken by its front end through a coordinator, which weir does not do; it works from vLLM %v on, or with ranks that are started with --headless", r.version, selfWaking)
	}
	if r.version == "" {
		return "", nil
	}
	known := fmt.Sprintf("vLLM %v to %v are known to work", oldest, newest)
	switch {
	case !ok || v == version{}: // a build from source that was given no number
		return fmt.Sprintf("the engine's version is %q; %s", r.version, known), nil
	case v.before(oldest):
		return "", fmt.Errorf("vLLM %s speaks another form of the wire; %s", r.version, known)
	case newest.before(v):
		return fmt.Sprintf("vLLM %s is newer than what this was tested with; %s", r.version, known), nil
	}
	return "", nil
}

// software is the engine's name and version.
func (r *ready) software() string {
	if r.version == "" {
		return "vLLM"
	}
	return "vLLM " + r.version
}

// carries is what the engine takes beyond what every engine does. Whether it
// schedules by priority it does not say.
func (r *ready) carries(priorities bool) infer.Carries {
	c := carriesNumbers
	v, ok := parseVersion(r.version)
	numbered := ok && v != version{}
	if priorities && r.placed() {
		c |= infer.CarriesPriority
	}
	if r.version == "" || numbered && v.before(guidesFail) {
		return c
	}
	return c | carriesGuides
}

// placed reports whether it is known where a request has its priority, and what follows
// that.
func (r *ready) placed() bool {
	v, ok := parseVersion(r.version)
	return ok && v != version{} && !v.before(withPriority) && !newest.before(v)
}

// whole returns the request in the form for the engine. If all of the answer must match
// a guide, the request has a field that states it. For a release in which the position
// of that field is not known, the request has only the guide, and it is refused if
// reasoning would come first.
func (r *ready) whole(req *infer.Request) (*infer.Request, *infer.Error) {
	g := req.Guide
	if g == nil || !g.Whole {
		return req, nil
	}
	if v, ok := parseVersion(r.version); ok && v != (version{}) && !newest.before(v) {
		return req, nil
	}
	if g.Reasoning != infer.NoReasoning {
		e := infer.Errorf(infer.CodeUnsupported, "the engine cannot hold all of the answer to a %s, as a tool call that must come: %s may wait for the end of reasoning, and how to tell it not to is known of vLLM %v to %v; ask for no reasoning, or leave the choice of tools to the model",
			g.Kind.Needs(), r.software(), guidesFail, newest)
		e.Lacks, e.Retryable = g.Kind.Needs(), true // another may
		return nil, e
	}
	plain, guide := *req, *g
	guide.Whole = false
	plain.Guide = &guide
	return &plain, nil
}

// withPriority is the first release that reports its version and has a request's
// priority at addPriority. In 0.20 the priority is elsewhere, and its position in
// future releases is unknown.
var withPriority = version{0, 24}

// guidesFail is the first release known in which a guide that does not compile
// fails its own request (0.29 to 0.31: read in its source; 0.32: run).
var guidesFail = version{0, 29}
