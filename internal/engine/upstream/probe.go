package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

const maxProbeBody = 4 << 20

var probeHeader = http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"weir"}}

// StatusError is an answer of another status than 200.
type StatusError struct {
	Status int
	Advice string // what to do about it; empty: nothing is known
}

// Error implements error.
func (e *StatusError) Error() string {
	if e.Advice != "" {
		return fmt.Sprintf("status %d: %s", e.Status, e.Advice)
	}
	return fmt.Sprintf("status %d", e.Status)
}

// Unauthorized means that an engine answered but refuses weir's credentials.
func Unauthorized(err error) bool {
	var refused *StatusError
	return errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden)
}

// statusError is the error of an answer to the client.
func (c *Client) statusError(status int) error {
	e := &StatusError{Status: status}
	if Unauthorized(e) {
		e.Advice = c.access.Advice()
	}
	return e
}

// Get reads a document, of at most 4 MiB and within the client's ReadTimeout.
func (c *Client) Get(ctx context.Context, path string) (data []byte, said http1.Fields, err error) {
	return c.document(ctx, &Request{Method: http.MethodGet, Path: path, Header: probeHeader, Reading: true})
}

// Post reads a document that is made of a JSON body, as Get does.
func (c *Client) Post(ctx context.Context, path string, body []byte) (data []byte, err error) {
	header := probeHeader.Clone()
	header.Set("Content-Type", "application/json")
	data, _, err = c.document(ctx, &Request{Method: http.MethodPost, Path: path, Header: header, Body: body})
	return data, err
}

func (c *Client) document(ctx context.Context, req *Request) (data []byte, said http1.Fields, err error) {
	said, err = c.read(ctx, req, func(b *Body) (err error) {
		data, err = io.ReadAll(io.LimitReader(b, maxProbeBody))
		return err
	})
	if err != nil {
		return nil, http1.Fields{}, err
	}
	return data, said, nil
}

// Lines reads a document as Get does, and calls take with each of its lines, in memory that is
// borrowed for the call. A document that is read every few seconds of a thousand engines is not
// allocated so.
func (c *Client) Lines(ctx context.Context, path string, take func(line []byte)) error {
	_, err := c.read(ctx, &Request{Method: http.MethodGet, Path: path, Header: probeHeader, Reading: true}, func(b *Body) error {
		var cut []byte // a line of which the rest has not come
		for all := 0; all < maxProbeBody; {
			data, err := b.Next()
			if err == io.EOF && len(data) == 0 {
				take(cut)
				return nil
			} else if err != nil {
				return err
			}
			all += len(data)
			for {
				line, rest, whole := bytes.Cut(data, []byte{'\n'})
				if !whole {
					break
				}
				if len(cut) > 0 {
					cut = append(cut, line...)
					line = cut
				}
				take(line)
				cut, data = cut[:0], rest
			}
			cut = append(cut, data...)
		}
		return nil
	})
	return err
}

// within returns a context that ends with another one, or after a time. A reading of a watched
// engine has one of package lifetime, which takes fewer allocations for each document than one of
// package context.
func within(ctx context.Context, d time.Duration) (_ context.Context, end func()) {
	whole := lifetime.Of(ctx)
	if whole == nil {
		return context.WithTimeout(ctx, d)
	}
	part := new(lifetime.Part)
	part.Of(whole)
	late := time.AfterFunc(d, part.Outlive)
	return part, func() {
		late.Stop()
		part.End(nil)
	}
}

// read asks for a document and reads it, within the time for that.
func (c *Client) read(ctx context.Context, req *Request, read func(*Body) error) (said http1.Fields, err error) {
	ctx, end := within(ctx, c.readTimeout)
	defer end()
	path := req.Path
	req.Leg = &trace.Leg{}
	resp, err := c.Do(ctx, req)
	if err != nil {
		return http1.Fields{}, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	defer resp.Body.Close()
	if err = read(resp.Body); err != nil {
		return http1.Fields{}, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	if resp.Status != http.StatusOK {
		return http1.Fields{}, fmt.Errorf("probe %s: %w", c.URL(path), c.statusError(resp.Status))
	}
	return resp.Fields, nil
}

// ReadOver returns the number of the connection over which the engine's latest document was read.
// As long as it is the same one, so is what is at its other end.
func (c *Client) ReadOver() uint64 { return c.readOver.Load() }

// GetFirst reads the first document of several paths that the engine has, which are names
// of the same thing in its releases.
func (c *Client) GetFirst(ctx context.Context, paths ...string) (data []byte, err error) {
	for _, path := range paths {
		var refused *StatusError
		if data, _, err = c.Get(ctx, path); !errors.As(err, &refused) {
			break
		}
	}
	return data, err
}

// Generate probes an engine's core: it posts a request of one token, over a connection
// of its own, and gives the answer once it is there. fields are further header fields, each
// a name and a value. Its errors are those of engine.Prober.
func (c *Client) Generate(ctx context.Context, path string, body []byte, fields ...string) (answer []byte, err error) {
	header := probeHeader.Clone()
	header.Set("Content-Type", "application/json")
	header.Set("X-Request-Id", fmt.Sprintf("weir-probe-%016x", rand.Uint64()))
	for i := 0; i+1 < len(fields); i += 2 {
		header.Set(fields[i], fields[i+1])
	}
	resp, err := c.Do(ctx, &Request{Method: http.MethodPost, Path: path, Header: header, Body: body, Leg: &trace.Leg{}, Alone: true})
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(resp.Body, maxProbeBody)); err != nil {
		return nil, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	if resp.Status == http.StatusOK {
		return answer, nil
	}
	err = c.statusError(resp.Status)
	switch {
	case resp.Status == http.StatusTooManyRequests || resp.Status == http.StatusServiceUnavailable:
		err = fmt.Errorf("%w: %w", engine.ErrBusy, err)
	case resp.Status < http.StatusInternalServerError:
		err = fmt.Errorf("%w: %w", engine.ErrNoProbe, err)
	}
	return nil, fmt.Errorf("probe %s: %w", c.URL(path), err)
}

// Reach asks the engine for its model list, over a connection of its own. Any answer will do
// but a failure. Its errors are those of engine.Prober.
func (c *Client) Reach(ctx context.Context) error {
	const path = ModelsPath
	resp, err := c.Do(ctx, &Request{Method: http.MethodGet, Path: path, Header: probeHeader, Leg: &trace.Leg{}, Alone: true})
	if err != nil {
		return fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	defer resp.Body.Close()
	if resp.Status >= http.StatusInternalServerError {
		return fmt.Errorf("probe %s: %w", c.URL(path), c.statusError(resp.Status))
	}
	return nil
}

var (
	errNoModels = errors.New("the model list is empty; name the engine's model with model=NAME")
	errNoList   = errors.New("not a model list")
)

// Nameless means that an engine answered without a model in its list: the model named
// by the operator is used.
func Nameless(err error) bool {
	var refused *StatusError
	return errors.Is(err, errNoModels) || errors.As(err, &refused) && refused.Status < 500 && !Unauthorized(err)
}

// Card is a model in an engine's list.
type Card struct {
	ID          string         `json:"id"`
	Parent      jsontext.Value `json:"parent"` // whatever an engine means by it
	MaxModelLen int            `json:"max_model_len"`
	OwnedBy     string         `json:"owned_by"`
}

// Owner is the engine that a model list names as its models' owner, as vLLM, SGLang,
// llama.cpp and weir do; empty where others name whose model it is.
func Owner(cards []Card) string {
	if len(cards) > 0 && slices.Contains([]string{"vllm", "sglang", "llamacpp", "weir"}, cards[0].OwnedBy) {
		return cards[0].OwnedBy
	}
	return ""
}

// ModelsPath is where an engine lists its models.
const ModelsPath = "/v1/models"

// Models reads an engine's model list, and what it says of the engine.
func (c *Client) Models(ctx context.Context) (facts engine.Facts, cards []Card, err error) {
	const path = ModelsPath
	data, said, err := c.Get(ctx, path)
	var refused *StatusError
	if errors.As(err, &refused) && !Unauthorized(err) {
		return engine.Facts{}, nil, fmt.Errorf("%w; if the engine has no model list, name its model with model=NAME", err)
	}
	if err != nil {
		return engine.Facts{}, nil, err
	}
	if facts, cards, err = parseModels(data); err != nil {
		return engine.Facts{}, nil, fmt.Errorf("probe %s: %w", c.URL(path), err)
	}
	facts.Software = said.Get("Server")
	if owner := Owner(cards); owner != "" {
		facts.Software = owner
	}
	return facts, cards, nil
}

// ModelsAndLoRA reads an engine's model list as Models does, where a card with a parent is
// a LoRA adapter, and keeps it in r. named is the name that the operator gave its model, which
// stands for a list that it does not have.
func (c *Client) ModelsAndLoRA(ctx context.Context, r *Reading[List], named string) (facts engine.Facts, adapters map[string]bool, err error) {
	list, err := c.ReadModels(ctx, r)
	if named != "" && Nameless(err) {
		return engine.Facts{Models: []string{named}}, nil, nil
	}
	if err != nil {
		return engine.Facts{}, nil, err
	}
	facts = list.Facts
	facts.Models = slices.Clone(facts.Models)
	adapters = map[string]bool{}
	for _, c := range list.Cards {
		if c.Parent.Kind() == '"' && string(c.Parent) != `""` && !adapters[c.ID] {
			adapters[c.ID] = true
			facts.LoRA = append(facts.LoRA, engine.LoRA{Name: c.ID})
		}
	}
	facts.Models = slices.DeleteFunc(facts.Models, func(name string) bool { return adapters[name] })
	facts.Old = r.Old(nil, ModelsPath)
	return facts, adapters, nil
}

func parseModels(data []byte) (f engine.Facts, cards []Card, err error) {
	var list struct {
		Data []Card `json:"data"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return engine.Facts{}, nil, fmt.Errorf("%w: %w", errNoList, err)
	}
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		f.Models = append(f.Models, m.ID)
		if m.MaxModelLen > 0 && (f.ContextLength == 0 || m.MaxModelLen < f.ContextLength) {
			f.ContextLength = m.MaxModelLen
		}
	}
	if len(f.Models) == 0 {
		return engine.Facts{}, nil, errNoModels
	}
	return f, list.Data, nil
}

// Watch probes an engine until it answers, and again at every interval, and
// reports each change. An engine that once answered counts as ready until it
// refuses connections three times in a row: a slow or failing probe is no proof
// that it cannot serve. Its facts stay as they were, and are marked old. The first interval is shortened at random, so that engines
// that join together are not probed together for ever.
func (c *Client) Watch(ctx context.Context, interval time.Duration, probe func(context.Context) (engine.Facts, error), report func(engine.State)) {
	var state engine.State
	refused, read := 0, int64(0) // when its pages were read last
	wait := 100 * time.Millisecond
	readings := new(lifetime.Context)
	defer context.AfterFunc(ctx, func() { readings.End(context.Cause(ctx)) })()
	for ctx.Err() == nil {
		c.pool.read(interval)
		facts, err := c.guarded(readings, probe)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			refused, wait, read = 0, interval, trace.Now()
			if !state.Ready {
				wait -= rand.N(interval/2 + 1)
			}
			if !state.Ready || !reflect.DeepEqual(facts, state.Facts) {
				state = engine.State{Ready: true, Facts: facts}
				report(state)
			}
		case !state.Ready:
			if state.Err == nil || state.Err.Error() != err.Error() {
				state.Err = err
				report(state)
			}
			wait = min(2*wait, 2*time.Second)
		default:
			wait = interval
			if old := state.Facts.Old; len(old) == 0 || old[0].Page != engine.AllPages {
				state.Facts.Old = append([]engine.Old{{Page: engine.AllPages, Since: read, Why: err.Error()}}, old...)
				report(state)
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			if refused++; refused >= 3 {
				state.Ready, state.Err = false, err
				c.life.Add(1)
				report(state)
				wait = 100 * time.Millisecond
			} else {
				wait = min(interval, time.Second)
			}
		}
		c.rest(ctx, wait)
	}
}

// soon is the time from a doubt to the next look: a server that restarts is back by then, or refuses.
const soon = 500 * time.Millisecond

// rest waits for the next look, which comes soon when there are doubts.
func (c *Client) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.doubt:
		sleep(ctx, min(soon, d))
	case <-ctx.Done():
	}
}

// guarded probes. A panic is a probe that failed.
func (c *Client) guarded(ctx context.Context, probe func(context.Context) (engine.Facts, error)) (f engine.Facts, err error) {
	defer func() {
		if p := infer.Caught(recover(), c.panicked); p != nil {
			err = p
		}
	}()
	return probe(ctx)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
