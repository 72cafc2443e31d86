// Package schedtest simulates the scheduler of an SGLang engine for tests of its
// clients. It writes the launcher's manifest, connects, and then reads and sends
// messages as the test directs.
package schedtest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

// manifest is the launcher's manifest for SGLang 0.5.23 (interop/sglang/golden.py).
//
//go:embed manifest.json
var manifest []byte

// Manifest returns a launcher's manifest with some of its fields set to something else.
func Manifest(set map[string]any) []byte {
	var fields map[string]any
	if err := json.Unmarshal(manifest, &fields); err != nil {
		panic(err)
	}
	for name, value := range set {
		fields[name] = value
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return b
}

// Fields returns the fields of one of the wire's structures.
func Fields(structure string) []string {
	var w struct {
		Wire map[string]struct{ Fields []string }
	}
	if err := json.Unmarshal(manifest, &w); err != nil {
		panic(err)
	}
	return w.Wire[structure].Fields
}

// Write puts a manifest where the launcher does, in place of an earlier one. nil removes it.
func Write(dir string, manifest []byte) error {
	at := filepath.Join(dir, "engine.json")
	if manifest == nil {
		return os.Remove(at)
	}
	if err := os.WriteFile(at+".new", manifest, 0o600); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// Options say what scheduler to play.
type Options struct {
	// Dir is the folder of the front end's sockets.
	Dir string
	// Ranks is how many data-parallel ranks it has, each with connections of its
	// own; default 1.
	Ranks int
	// Connected is called when all connections stand, before the first Receive.
	Connected func(s *Scheduler)
	// Receive is called for each message of the front end, from one goroutine.
	Receive func(s *Scheduler, m Message)
	// Slow leaves the front end's messages unread.
	Slow bool
}

// Message is what a front end says, as a scheduler decodes it.
type Message struct {
	Tag    string
	Fields map[string]any
	Values []any
}

// Output is what a step brought for one request.
type Output struct {
	ID     string
	IDs    []uint32
	Count  int // completion_tokens
	Prompt int // prompt_tokens
	Cached int // cached_tokens
	// Retracted is how often it went back to the queue so far.
	Retracted int
	// Queued, Forwarded and Prefilled are its stamps, in seconds of the monotonic clock.
	Queued, Forwarded, Prefilled float64
	Finish                       map[string]any // nil while it runs
	// Logprobs are those of the ids, of a request that asked for them.
	Logprobs *infer.Logprobs
}

// Scheduler is one that has connected.
type Scheduler struct {
	o    Options
	in   *zmtp.Conn
	outs []*zmtp.Conn // of each rank two: for answers, and for outputs
	done chan struct{}

	mu  sync.Mutex
	buf []byte
}

// Start connects. Its manifest is the launcher's to write (Write).
func Start(ctx context.Context, o Options) (*Scheduler, error) {
	o.Ranks = max(o.Ranks, 1)
	s := &Scheduler{o: o, done: make(chan struct{})}
	var err error
	if s.in, err = dial(ctx, filepath.Join(o.Dir, "in"), zmtp.Pull); err != nil {
		return nil, err
	}
	for range 2 * o.Ranks {
		c, err := dial(ctx, filepath.Join(o.Dir, "out"), zmtp.Push)
		if err != nil {
			s.close()
			return nil, err
		}
		s.outs = append(s.outs, c)
	}
	if o.Connected != nil {
		o.Connected(s)
	}
	go s.read()
	return s, nil
}

func dial(ctx context.Context, path string, kind zmtp.Type) (*zmtp.Conn, error) {
	for {
		c, err := zmtp.Dial(ctx, zmtp.Endpoint{Network: "unix", Address: path}, zmtp.Config{Type: kind})
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		select { // as ZeroMQ does: until somebody listens
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// read reads the front end's messages until the connection ends.
func (s *Scheduler) read() {
	defer close(s.done)
	if s.o.Slow {
		return
	}
	for {
		frames, err := s.in.Recv()
		if err != nil {
			return
		}
		m, err := parse(frames)
		if err != nil {
			panic(fmt.Sprintf("the front end sent what a scheduler dies of: %v", err))
		}
		if s.o.Receive != nil {
			s.o.Receive(s, m)
		}
	}
}

// parse reads a message.
func parse(frames [][]byte) (m Message, err error) {
	if len(frames) != 1 {
		return m, fmt.Errorf("%d frames", len(frames))
	}
	v, rest, err := msgp.ReadIntfBytes(frames[0])
	if err != nil || len(rest) > 0 {
		return m, fmt.Errorf("%w, %d bytes left", err, len(rest))
	}
	values, ok := v.([]any)
	if !ok || len(values) == 0 {
		return m, fmt.Errorf("%T", v)
	}
	m.Tag, ok = values[0].(string)
	if !ok {
		return m, fmt.Errorf("no tag but %T", values[0])
	}
	m.Values = values[1:]
	names := Fields(m.Tag)
	if len(names) != len(m.Values) {
		return m, fmt.Errorf("%s has %d fields, want %d", m.Tag, len(m.Values), len(names))
	}
	m.Fields = named(names, m.Values)
	if sampling, ok := m.Fields["sampling_params"].([]any); ok {
		m.Fields["sampling_params"] = named(Fields("SamplingParams"), sampling)
	}
	return m, nil
}

func named(names []string, values []any) map[string]any {
	fields := map[string]any{}
	for i, name := range names {
		fields[name] = values[i]
	}
	return fields
}

// ID returns the rid.
func (m Message) ID() string { id, _ := m.Fields["rid"].(string); return id }

// Prompt returns the ids of a request.
func (m Message) Prompt() []uint32 {
	x, ok := m.Fields["input_ids"].(*msgp.RawExtension)
	if !ok {
		panic(fmt.Sprintf("input_ids is %T", m.Fields["input_ids"]))
	}
	var ids []uint32
	for raw := x.Data[6:]; len(raw) > 0; raw = raw[8:] {
		ids = append(ids, uint32(binary.LittleEndian.Uint64(raw)))
	}
	return ids
}

// Limit returns a request's max_new_tokens.
func (m Message) Limit() int {
	return int(Number(m.Fields["sampling_params"].(map[string]any)["max_new_tokens"]))
}

// Number returns an integer.
func Number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		return int64(v)
	}
	panic(fmt.Sprintf("%T is no integer", v))
}

// Step returns what a step brought, over a rank's connection of outputs.
func (s *Scheduler) Step(rank int, outs ...Output) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = AppendStep(s.buf[:0], outs...)
	return s.outs[2*rank+1].Send(s.buf)
}

// Answer sends a fence back from each rank, behind its outputs.
func (s *Scheduler) Answer(m Message) error {
	for rank := range s.o.Ranks {
		if err := s.AnswerFrom(rank, m); err != nil {
			return err
		}
	}
	return nil
}

// AnswerFrom sends a fence back from one rank.
func (s *Scheduler) AnswerFrom(rank int, m Message) error {
	return s.outs[2*rank+1].Send(AppendMessage(nil, m.Tag, m.Values...))
}

// Rank is the rank that a request is for; -1: it names none.
func (m Message) Rank() int {
	if n, ok := m.Fields["routed_dp_rank"].(int64); ok {
		return int(n)
	}
	return -1
}

// Say says something over the connection of answers to calls.
func (s *Scheduler) Say(wire []byte) error { return s.outs[0].Send(wire) }

// Raw says these very frames over the connection of outputs.
func (s *Scheduler) Raw(frames ...[]byte) error { return s.outs[1].Send(frames...) }

// Echo says that a request ended outside of a step.
func (s *Scheduler) Echo(id string, reason map[string]any) error {
	return s.Say(AppendEcho(nil, id, reason))
}

// State sends the answer to a call for the scheduler's internal state.
func (s *Scheduler) State(maxRunning int) error {
	return s.Say(AppendMessage(nil, "GetInternalStateReqOutput", nil, nil,
		map[string]any{
			"model_path": "m", "effective_max_running_requests_per_dp": maxRunning, "chunked_prefill_size": 8192,
			"memory_usage": map[string]any{"weight": 12.5, "kvcache": 20.25, "token_capacity": 70_000, "token_capacity_swa": nil, "graph": map[string]any{"decode": 0.5}},
		}))
}

// AppendEcho appends word of a request that ended outside of a step.
func AppendEcho(b []byte, id string, reason map[string]any) []byte {
	values := []any{id, nil, false, reason, nil, nil}
	if reason == nil {
		values[3] = nil
	}
	return AppendMessage(b, "AbortReq", values...)
}

// AppendMessage appends a tagged message.
func AppendMessage(b []byte, tag string, values ...any) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(values)+1))
	b = msgp.AppendString(b, tag)
	for _, v := range values {
		var err error
		if b, err = msgp.AppendIntf(b, v); err != nil {
			panic(err)
		}
	}
	return b
}

var stepFields = Fields("BatchTokenIDOutput")

// AppendStep appends what a step brought, with every column that a scheduler fills.
func AppendStep(b []byte, outs ...Output) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(stepFields)+1))
	b = msgp.AppendString(b, "BatchTokenIDOutput")
	column := func(put func(o *Output)) {
		b = msgp.AppendArrayHeader(b, uint32(len(outs)))
		for i := range outs {
			put(&outs[i])
		}
	}
	scored := slices.ContainsFunc(outs, func(o Output) bool { return o.Logprobs != nil })
	for _, name := range stepFields {
		if scored {
			if of, ok := scores[name]; ok {
				column(func(o *Output) { b = of(b, o) })
				continue
			}
		}
		switch name {
		case "rids":
			column(func(o *Output) { b = msgp.AppendString(b, o.ID) })
		case "http_worker_ipcs", "cached_tokens_details", "dp_ranks":
			column(func(*Output) { b = msgp.AppendNil(b) })
		case "finished_reasons":
			column(func(o *Output) {
				if o.Finish == nil {
					b = msgp.AppendNil(b)
					return
				}
				b, _ = msgp.AppendIntf(b, o.Finish)
			})
		case "decoded_texts":
			column(func(*Output) { b = msgp.AppendString(b, "") })
		case "decode_ids", "output_ids":
			column(func(o *Output) { b = appendIDs(b, o.IDs) })
		case "prompt_tokens":
			column(func(o *Output) { b = msgp.AppendInt(b, o.Prompt) })
		case "completion_tokens":
			column(func(o *Output) { b = msgp.AppendInt(b, o.Count) })
		case "retraction_counts":
			column(func(o *Output) { b = msgp.AppendInt(b, o.Retracted) })
		case "cached_tokens":
			column(func(o *Output) { b = msgp.AppendInt(b, o.Cached) })
		case "read_offsets", "reasoning_tokens", "image_tokens", "audio_tokens", "video_tokens":
			column(func(*Output) { b = msgp.AppendInt(b, 0) })
		case "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim":
			column(func(*Output) { b = msgp.AppendBool(b, true) })
		case "time_stats":
			b = msgp.AppendArrayHeader(b, 2)
			b = msgp.AppendString(b, "PickleWrapper")
			b = msgp.AppendBytes(b, Stats(outs))
		case "spec_verify_ct", "spec_num_correct_drafts", "spec_num_block_accept_tokens", "spec_num_cap_tokens",
			"spec_correct_drafts_histogram", "spec_cap_lens_histogram":
			b = msgp.AppendArrayHeader(b, 0)
		default:
			b = msgp.AppendNil(b)
		}
	}
	return b
}

// scores are the columns of log probabilities: empty of requests that did not ask.
var scores = map[string]func(b []byte, o *Output) []byte{
	"output_token_logprobs_val": func(b []byte, o *Output) []byte {
		if o.Logprobs == nil {
			return msgp.AppendArrayHeader(b, 0)
		}
		return appendFloats(b, o.Logprobs.Own)
	},
	"output_token_logprobs_idx": func(b []byte, o *Output) []byte {
		if o.Logprobs == nil {
			return msgp.AppendArrayHeader(b, 0)
		}
		return appendInts(b, o.IDs)
	},
	"output_top_logprobs_val": func(b []byte, o *Output) []byte {
		return appendRows(b, o, func(b []byte, l infer.Logprobs) []byte { return appendFloats(b, l.Top) })
	},
	"output_top_logprobs_idx": func(b []byte, o *Output) []byte {
		return appendRows(b, o, func(b []byte, l infer.Logprobs) []byte { return appendInts(b, l.TopIDs) })
	},
}

// appendRows appends a row for each position.
func appendRows(b []byte, o *Output, row func(b []byte, l infer.Logprobs) []byte) []byte {
	l := o.Logprobs
	if l == nil || len(l.Own) == 0 {
		return msgp.AppendArrayHeader(b, 0)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(l.Own)))
	for i := range l.Own {
		b = row(b, l.Cut(i, i+1, len(l.Top)/len(l.Own)))
	}
	return b
}

func appendFloats(b []byte, values []float32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(values)))
	for _, v := range values {
		b = msgp.AppendFloat64(b, float64(v))
	}
	return b
}

func appendInts(b []byte, ids []uint32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(ids)))
	for _, id := range ids {
		b = msgp.AppendUint32(b, id)
	}
	return b
}

func appendIDs(b []byte, ids []uint32) []byte {
	body := append(make([]byte, 0, 6+8*len(ids)), 0, 0, 0, 2, 0xa1, 'q')
	for _, id := range ids {
		body = binary.LittleEndian.AppendUint64(body, uint64(id))
	}
	b, err := msgp.AppendExtension(b, &msgp.RawExtension{Type: 1, Data: body})
	if err != nil {
		panic(err)
	}
	return b
}

// CloseOutput breaks one connection of outputs.
func (s *Scheduler) CloseOutput() { s.outs[1].Close() }

// Close breaks every connection.
func (s *Scheduler) Close() {
	s.close()
	<-s.done
}

func (s *Scheduler) close() {
	s.in.Close()
	for _, c := range s.outs {
		c.Close()
	}
}

// Done is closed when the front end has ended the input connection.
func (s *Scheduler) Done() <-chan struct{} { return s.done }
