// Package coretest simulates a vLLM engine core for tests of its clients. It dials in,
// does the handshake, and then reads and sends messages as the test directs.
package coretest

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// Options say what engine to play.
type Options struct {
	// Handshake is the front end's handshake socket. Empty: Input and Output are
	// connected to at once, as an engine does whose launcher shook hands.
	Handshake     string
	Input, Output string
	// Index is the engine's, in its data-parallel group.
	Index int
	// Version is the release to be; its outputs have that release's fields.
	// Default 0.33.0.
	Version string
	// ContextLength is its max_model_len; default 4096.
	ContextLength int
	// MaxRunning is its max_num_seqs; default 256.
	MaxRunning int
	// Word, when set, is sent in place of the engine's word of itself; empty but
	// not nil sends none, as an engine whose connection broke and came back.
	Word []byte
	// Connected is called when both connections stand, before the first Receive.
	Connected func(c *Core)
	// Receive is called for each message of the front end, from one goroutine.
	Receive func(c *Core, m Message)
	// NoLoRA is set if it was started without --enable-lora, as releases from 0.32 on do.
	NoLoRA bool
	// Slow leaves the front end's messages unread.
	Slow bool
}

// Message is what a front end says.
type Message struct {
	Type   byte // 0 ADD, 1 ABORT, 2 START_DP_WAVE, 3 UTILITY
	Add    Request
	Abort  []string
	Wave   int64
	Call   int64
	Method string
	// Adapter is what add_lora is called with.
	Adapter *Adapter
}

// Adapter is a LoRARequest.
type Adapter struct {
	Name string
	ID   int64
	Path string
}

// Request is an ADD.
type Request struct {
	ID       string
	Prompt   []uint32
	Sampling map[string]any
	Fields   int // of the array
	Adapter  *Adapter
	Priority int64
	// Trace is trace_headers.
	Trace map[string]any
	// Ended is reasoning_ended, false where it is not given.
	Ended bool
}

// Output is what is said of one request.
type Output struct {
	ID  string
	IDs []uint32
	// Logprobs are said of the ids; nil: none.
	Logprobs *Logprobs
	Finish   int // -1: none
	Stop     any // nil, an int64 or a string
	// Trace is trace_headers: the engine gives back what its request had.
	Trace map[string]any
	// Preempted is how often it was sent back to the queue.
	Preempted int
	// Queued and Scheduled are the events' times; 0: none.
	Queued, Scheduled int64
	// Prompt and Cached are the prefill's; none without Prompt.
	Prompt, Cached int
	// Transfer is kv_transfer_params, what the end of a prefill leg says (Prefilled).
	Transfer map[string]any
	// ErrorCode and ErrorText are said by releases that do.
	ErrorCode, ErrorText string
}

// Transfer returns the kv_transfer_params of a request, which make it a leg of a pair;
// nil: it has none.
func (r *Request) Transfer() map[string]any {
	extra, _ := r.Sampling["extra_args"].(map[string]any)
	params, _ := extra["kv_transfer_params"].(map[string]any)
	return params
}

// Prefilled returns what a core with NixlConnector, or in push mode NixlPushConnector,
// answers to a prefill leg: where a decode engine finds its KV, in blocks of 16.
func Prefilled(r *Request, engine, host string, port int, push bool) map[string]any {
	blocks := []any{}
	for i := range (len(r.Prompt) + 15) / 16 {
		blocks = append(blocks, int64(i+1))
	}
	params := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{blocks}, "remote_engine_id": engine, "remote_request_id": r.ID,
		"remote_host": host, "remote_port": int64(port), "tp_size": int64(1), "dcp_size": int64(1), "pp_size": int64(1), "remote_num_tokens": int64(len(r.Prompt)),
		"remote_blocks_expiry_time": nil, "transfer_mode": "pull", "remote_prefill_cached_tokens": int64(0),
	}
	if push {
		delete(params, "remote_blocks_expiry_time")
		params["transfer_mode"] = "push"
	}
	return params
}

// Logprobs is new_logprobs: a row for each of Own, whose ids are Of. The
// alternatives of all rows follow each other in TopIDs and Top.
type Logprobs struct {
	Of, TopIDs []uint32
	Own, Top   []float32
	// Wide is set if ids are written in 64 bits.
	Wide bool
	// Frame, unless 0, is where the message has the data of the ids, and the frame
	// after it that of the values; Frames gives what they hold.
	Frame int
}

// Batch is one message of the engine.
type Batch struct {
	Rank      int
	Outputs   []Output
	Timestamp int64 // 0: now
	Stats     *Stats
	Call      int64 // the call that is answered; 0: none
	Failure   string
	Given     bool  // what the call gives; is_sleeping: false
	Complete  int64 // wave_complete, plus 1; 0: none
	Start     int64 // start_wave, plus 1; 0: none
}

// Stats are scheduler_stats.
type Stats struct {
	Running, Waiting int
	KVUsage          float64
	Drafts           bool // it decodes speculatively
}

// Core is an engine that has connected.
type Core struct {
	o       Options
	in, out *zmtp.Conn
	done    chan struct{}

	mu  sync.Mutex
	buf []byte
}

// Start connects and, unless Word says otherwise, ends ready.
func Start(ctx context.Context, o Options) (*Core, error) {
	if o.Version == "" {
		o.Version = "0.33.0"
	}
	if o.ContextLength == 0 {
		o.ContextLength = 4096
	}
	c := &Core{o: o, done: make(chan struct{})}
	identity := binary.LittleEndian.AppendUint16(nil, uint16(o.Index))
	var hand *zmtp.Conn
	if o.Handshake != "" {
		var err error
		if hand, err = c.shake(ctx, identity); err != nil {
			return nil, err
		}
		defer hand.Close()
	}
	in, err := dial(ctx, c.o.Input, zmtp.Config{Type: zmtp.Dealer, Identity: identity})
	if err != nil {
		return nil, err
	}
	out, err := dial(ctx, c.o.Output, zmtp.Config{Type: zmtp.Push})
	if err != nil {
		in.Close()
		return nil, err
	}
	c.in, c.out = in, out
	word := o.Word
	if word == nil {
		word = c.word()
	}
	if len(word) > 0 {
		err = in.Send(word)
	}
	if hand != nil {
		err = errors.Join(err, hand.Send(status("READY")))
	}
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	if o.Connected != nil {
		o.Connected(c)
	}
	go c.read()
	return c, nil
}

func dial(ctx context.Context, at string, cfg zmtp.Config) (*zmtp.Conn, error) {
	e, err := zmtp.ParseEndpoint(at)
	if err != nil {
		return nil, err
	}
	for {
		c, err := zmtp.Dial(ctx, e, cfg)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		select { // as ZeroMQ does: until somebody listens
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func status(word string) []byte {
	b := msgp.AppendMapHeader(nil, 3)
	b = msgp.AppendString(msgp.AppendString(b, "status"), word)
	b = msgp.AppendBool(msgp.AppendString(b, "local"), false)
	return msgp.AppendBool(msgp.AppendString(b, "headless"), true)
}

// shake says HELLO and learns where to connect to.
func (c *Core) shake(ctx context.Context, identity []byte) (*zmtp.Conn, error) {
	hand, err := dial(ctx, c.o.Handshake, zmtp.Config{Type: zmtp.Dealer, Identity: identity})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { hand.Close() })
	defer stop()
	if err := hand.Send(status("HELLO")); err != nil {
		return nil, err
	}
	frames, err := hand.Recv()
	if err != nil {
		hand.Close()
		return nil, fmt.Errorf("wait for INIT: %w", err)
	}
	init, _, err := msgp.ReadMapStrIntfBytes(frames[0], nil)
	if err != nil {
		hand.Close()
		return nil, err
	}
	addresses := init["addresses"].(map[string]any)
	c.o.Input = addresses["inputs"].([]any)[0].(string)
	c.o.Output = addresses["outputs"].([]any)[0].(string)
	return hand, nil
}

// Addresses returns where the engine is connected, to come back without a handshake.
func (c *Core) Addresses() (input, output string) { return c.o.Input, c.o.Output }

// word is what the release says of itself.
func (c *Core) word() []byte {
	fields := map[string]any{"max_model_len": c.o.ContextLength, "num_gpu_blocks": 1000, "dp_stats_address": nil}
	if c.o.Version != "0.20.0" {
		fields["vllm_version"] = c.o.Version
		fields["max_num_seqs"] = cmp.Or(c.o.MaxRunning, 256)
		fields["instance_id"] = "one"
		fields["data_parallel_size"] = 1
		// vLLM's own clients want the rest as well.
		for _, name := range []string{"world_size", "tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "max_loras"} {
			fields[name] = 1
		}
		fields["data_parallel_rank"], fields["max_num_batched_tokens"] = c.o.Index, 8192
		fields["block_size"], fields["dtype"], fields["supports_lora"] = 16, "bfloat16", true
	}
	if c.o.NoLoRA {
		fields["supports_lora"] = false
	}
	b, err := msgp.AppendMapStrIntf(nil, fields)
	if err != nil {
		panic(err)
	}
	return b
}

// read reads the front end's messages until the connection ends.
func (c *Core) read() {
	defer close(c.done)
	if c.o.Slow {
		return
	}
	for {
		frames, err := c.in.Recv()
		if err != nil {
			return
		}
		m, err := parse(frames, c.o.Version)
		if err != nil {
			panic(fmt.Sprintf("the front end sent what an engine dies of: %v", err))
		}
		if c.o.Receive != nil {
			c.o.Receive(c, m)
		}
	}
}

// parse reads a message as strictly as an engine does.
func parse(frames [][]byte, release string) (m Message, err error) {
	if len(frames) != 2 || len(frames[0]) != 1 {
		return m, fmt.Errorf("%d frames, the first of %d bytes", len(frames), len(frames[0]))
	}
	m.Type = frames[0][0]
	v, rest, err := readAny(frames[1])
	if err != nil || len(rest) > 0 {
		return m, fmt.Errorf("type %d: %w, %d bytes left", m.Type, err, len(rest))
	}
	a := v.([]any)
	switch m.Type {
	case 0:
		m.Add, err = parseAdd(a, release)
	case 1:
		for _, id := range a {
			m.Abort = append(m.Abort, id.(string))
		}
	case 2:
		m.Wave = number(a[0])
	case 3:
		if len(a) != 4 {
			return m, fmt.Errorf("a call of %d fields", len(a))
		}
		m.Call, m.Method = number(a[1]), a[2].(string)
		if args := a[3].([]any); m.Method == "add_lora" && len(args) == 1 {
			m.Adapter, err = parseAdapter(args[0])
		} else if len(args) > 0 {
			return m, fmt.Errorf("%s is called with %d arguments", m.Method, len(args))
		}
	default:
		err = fmt.Errorf("type %d", m.Type)
	}
	return m, err
}

// readAny reads a value. Maps may have numbers for keys, which become words.
func readAny(b []byte) (v any, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.ArrayType:
		n, b, err := msgp.ReadArrayHeaderBytes(b)
		list := []any{}
		for range n {
			if err != nil {
				break
			}
			var item any
			if item, b, err = readAny(b); err == nil {
				list = append(list, item)
			}
		}
		return list, b, err
	case msgp.MapType:
		n, b, err := msgp.ReadMapHeaderBytes(b)
		fields := map[string]any{}
		for range n {
			if err != nil {
				break
			}
			var key, value any
			if key, b, err = readAny(b); err == nil {
				value, b, err = readAny(b)
				fields[fmt.Sprint(key)] = value
			}
		}
		return fields, b, err
	}
	return msgp.ReadIntfBytes(b)
}

func parseAdd(a []any, release string) (r Request, err error) {
	if len(a) < 9 {
		return r, fmt.Errorf("a request of %d fields", len(a))
	}
	r.ID, r.Fields = a[0].(string), len(a)
	for _, id := range a[1].([]any) {
		r.Prompt = append(r.Prompt, uint32(number(id)))
	}
	r.Sampling = a[3].(map[string]any)
	if _, ok := a[5].(float64); !ok {
		return r, fmt.Errorf("arrival_time is %T", a[5])
	}
	for _, i := range []int{2, 4, 7, 8} {
		if a[i] != nil {
			return r, fmt.Errorf("field %d is %v", i, a[i])
		}
	}
	if len(a) > 9 && release == "0.20.0" {
		return r, fmt.Errorf("%d fields of a request to 0.20", len(a))
	}
	for i := 9; i < len(a); i++ {
		switch {
		case i == 13:
			r.Priority = number(a[i])
		case i == 11 || i == 12: // client_index, current_wave
			if number(a[i]) != 0 {
				return r, fmt.Errorf("field %d is %v", i, a[i])
			}
		case i == 14 && a[i] != nil:
			if r.Trace, _ = a[i].(map[string]any); r.Trace == nil {
				return r, fmt.Errorf("trace_headers are %v", a[i])
			}
		case i == 15: // resumable
			if a[i] != false {
				return r, fmt.Errorf("field %d is %v", i, a[i])
			}
		case i == 17:
			r.Ended = a[i] == true
		case i == 16: // external_req_id, which vLLM's own clients send
			if _, ok := a[i].(string); !ok && a[i] != nil {
				return r, fmt.Errorf("field %d is %v", i, a[i])
			}
		case i == 18: // reasoning_parser_kwargs, likewise
			if _, ok := a[i].(map[string]any); !ok && a[i] != nil {
				return r, fmt.Errorf("field %d is %v", i, a[i])
			}
		case a[i] != nil && a[i] != false:
			return r, fmt.Errorf("field %d is %v", i, a[i])
		}
	}
	if a[6] != nil {
		r.Adapter, err = parseAdapter(a[6])
	}
	return r, err
}

func parseAdapter(v any) (*Adapter, error) {
	a, ok := v.([]any)
	if !ok || len(a) < 3 {
		return nil, fmt.Errorf("an adapter is %v", v)
	}
	l := &Adapter{Name: a[0].(string), ID: number(a[1]), Path: a[2].(string)}
	if l.ID < 1 || l.Path == "" {
		return nil, fmt.Errorf("an adapter has id %d and path %q", l.ID, l.Path)
	}
	return l, nil
}

func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		return int64(v)
	}
	panic(fmt.Sprintf("%T is no integer", v))
}

// Number returns an integer of a Request's sampling parameters.
func Number(v any) int64 { return number(v) }

// Send says a batch.
func (c *Core) Send(b Batch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.Rank = c.o.Index
	c.buf = Append(c.buf[:0], b, c.o.Version)
	return c.out.Send(c.buf)
}

// Raw says these very frames.
func (c *Core) Raw(frames ...[]byte) error { return c.out.Send(frames...) }

// Close breaks both connections.
func (c *Core) Close() {
	c.in.Close()
	c.out.Close()
	<-c.done
}

// CloseOutput breaks the connection of the outputs.
func (c *Core) CloseOutput() { c.out.Close() }

// Done is closed when the front end has ended the input connection.
func (c *Core) Done() <-chan struct{} { return c.done }

// Append appends a batch as a release says it.
func Append(b []byte, m Batch, release string) []byte {
	old := release == "0.20.0" || release == "0.24.0"
	at := m.Timestamp
	if at == 0 {
		at = trace.Now()
	}
	fields := uint32(9)
	if old {
		fields = 8
	}
	b = msgp.AppendArrayHeader(b, fields)
	b = msgp.AppendInt(b, m.Rank)
	b = msgp.AppendArrayHeader(b, uint32(len(m.Outputs)))
	for i := range m.Outputs {
		b = appendOutput(b, &m.Outputs[i], old)
	}
	b = appendStats(b, m.Stats)
	b = msgp.AppendFloat64(b, float64(at)/1e9)
	if m.Call == 0 {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendArrayHeader(b, 3)
		b = msgp.AppendInt64(b, m.Call)
		if m.Failure != "" {
			b = msgp.AppendNil(msgp.AppendString(b, m.Failure))
		} else {
			b = msgp.AppendNil(b)
			b = msgp.AppendArrayHeader(b, 2)
			b = msgp.AppendBool(msgp.AppendNil(b), m.Given)
		}
	}
	b = msgp.AppendNil(b) // finished_requests
	for _, wave := range []int64{m.Complete, m.Start} {
		if wave == 0 {
			b = msgp.AppendNil(b)
		} else {
			b = msgp.AppendInt64(b, wave-1)
		}
	}
	if !old {
		b = msgp.AppendNil(b) // weight_version
	}
	return b
}

// prefixCacheStats has each member that vLLM's own clients want.
var prefixCacheStats = map[string]any{"reset": false, "requests": 0, "queries": 0, "hits": 0, "preempted_requests": 0, "preempted_queries": 0, "preempted_hits": 0}

func appendStats(b []byte, s *Stats) []byte {
	if s == nil {
		return msgp.AppendNil(b)
	}
	var drafts any
	if s.Drafts {
		drafts = map[string]any{"num_spec_tokens": 1, "num_drafts": 1, "num_draft_tokens": 1, "num_accepted_tokens": 0, "num_accepted_tokens_per_pos": []any{0}}
	}
	b, err := msgp.AppendMapStrIntf(b, map[string]any{
		"num_running_reqs": s.Running, "num_waiting_reqs": s.Waiting, "num_skipped_waiting_reqs": 0,
		"kv_cache_usage": s.KVUsage, "prefix_cache_stats": prefixCacheStats,
		"step_counter": 0, "current_wave": 0, "kv_cache_eviction_events": []any{}, "spec_decoding_stats": drafts,
		"num_kv_fetch_reqs_by_stage": map[string]any{}, "waiting_lora_adapters": map[string]any{}, "running_lora_adapters": map[string]any{},
	})
	if err != nil {
		panic(err)
	}
	return b
}

func appendOutput(b []byte, o *Output, old bool) []byte {
	fields := uint32(19)
	if old {
		fields = 13
	}
	b = msgp.AppendArrayHeader(b, fields)
	b = msgp.AppendString(b, o.ID)
	b = msgp.AppendArrayHeader(b, uint32(len(o.IDs)))
	for _, id := range o.IDs {
		b = msgp.AppendUint32(b, id)
	}
	if o.Logprobs == nil {
		b = msgp.AppendNil(b)
	} else {
		b = o.Logprobs.append(b)
	}
	b = appendNils(b, 2)
	if o.Finish < 0 {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendInt(b, o.Finish)
	}
	b, err := msgp.AppendIntf(b, o.Stop)
	if err != nil {
		panic(err)
	}
	b = appendEvents(b, o)
	if o.Transfer == nil {
		b = msgp.AppendNil(b)
	} else if b, err = msgp.AppendMapStrIntf(b, o.Transfer); err != nil {
		panic(err)
	}
	if !old {
		b = msgp.AppendNil(b) // ec_transfer_params
	}
	if o.Trace == nil {
		b = msgp.AppendNil(b)
	} else if b, err = msgp.AppendMapStrIntf(b, o.Trace); err != nil {
		panic(err)
	}
	if o.Prompt == 0 {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendMapHeader(b, 6)
		for _, f := range []struct {
			name  string
			value int
		}{{"num_prompt_tokens", o.Prompt}, {"num_computed_tokens", o.Prompt - o.Cached}, {"num_cached_tokens", o.Cached},
			{"num_local_cached_tokens", o.Cached}, {"num_external_cached_tokens", 0}, {"num_cache_creation_tokens", 0}} {
			b = msgp.AppendInt(msgp.AppendString(b, f.name), f.value)
		}
	}
	b = msgp.AppendNil(b)    // routed_experts
	b = msgp.AppendInt(b, 0) // num_nans_in_logits
	if old {
		return b
	}
	b = appendNils(b, 4)
	if o.ErrorCode == "" {
		return msgp.AppendNil(b)
	}
	b = msgp.AppendMapHeader(b, 3)
	b = msgp.AppendString(msgp.AppendString(b, "code"), o.ErrorCode)
	b = msgp.AppendString(msgp.AppendString(b, "message"), o.ErrorText)
	return msgp.AppendBool(msgp.AppendString(b, "retryable"), o.ErrorCode == "engine_paused")
}

// Frames returns the data of ids and values.
func (l *Logprobs) Frames() (ids, values []byte) {
	k := len(l.TopIDs) / max(1, len(l.Own))
	id := func(v uint32) {
		ids = binary.LittleEndian.AppendUint32(ids, v)
		if l.Wide {
			ids = append(ids, 0, 0, 0, 0)
		}
	}
	for i, own := range l.Own {
		id(l.Of[i])
		values = binary.LittleEndian.AppendUint32(values, math.Float32bits(own))
		for a := i * k; a < (i+1)*k; a++ {
			id(l.TopIDs[a])
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(l.Top[a]))
		}
	}
	return ids, values
}

func (l *Logprobs) append(b []byte) []byte {
	rows, cols := len(l.Own), 1+len(l.TopIDs)/max(1, len(l.Own))
	ids, values := l.Frames()
	array := func(b []byte, dtype string, data []byte, frame int, shape ...int) []byte {
		b = msgp.AppendArrayHeader(b, 3)
		b = msgp.AppendString(b, dtype)
		b = msgp.AppendArrayHeader(b, uint32(len(shape)))
		for _, n := range shape {
			b = msgp.AppendInt(b, n)
		}
		if frame > 0 {
			return msgp.AppendInt(b, frame)
		}
		b, err := msgp.AppendExtension(b, &msgp.RawExtension{Type: 3, Data: data})
		if err != nil {
			panic(err)
		}
		return b
	}
	b = msgp.AppendArrayHeader(b, 4)
	dtype, second := "<i4", 0
	if l.Wide {
		dtype = "<i8"
	}
	if l.Frame > 0 {
		second = l.Frame + 1
	}
	b = array(b, dtype, ids, l.Frame, rows, cols)
	b = array(b, "<f4", values, second, rows, cols)
	b = array(b, "<i4", make([]byte, 4*rows), 0, rows) // ranks
	return msgp.AppendNil(b)
}

func appendEvents(b []byte, o *Output) []byte {
	type event struct {
		kind int
		at   int64
	}
	var events []event
	if o.Queued != 0 {
		events = append(events, event{1, o.Queued}, event{2, o.Scheduled})
	}
	for range o.Preempted {
		events = append(events, event{3, o.Scheduled})
	}
	if len(events) == 0 {
		return msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendInt(msgp.AppendString(b, "type"), e.kind)
		b = msgp.AppendFloat64(msgp.AppendString(b, "timestamp"), float64(e.at)/1e9)
	}
	return b
}

func appendNils(b []byte, n int) []byte {
	for range n {
		b = msgp.AppendNil(b)
	}
	return b
}
