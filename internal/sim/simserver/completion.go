package simserver

import (
	"crypto/rand"
	"net/http"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/trace"
)

// completion serves one dialect of completions.
func (e *Engine) completion(d *dialect) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		created := trace.Now()
		id := r.Header.Get("X-Request-Id")
		if id == "" {
			id = rand.Text()
		}
		w.Header().Set("X-Request-Id", id)
		a, requests, err := e.accept(d, id, w, r)
		if err != nil {
			e.refused.Add(1)
			writeError(w, err)
			return
		}
		if a.faulty && !a.delay() {
			e.refused.Add(1)
			return
		}
		defer a.abandon()
		for i := range requests {
			c := &a.choices[i]
			if err := e.submit(r.Context(), &c.job, created, requests[i]); err != nil {
				writeError(w, err)
				return
			}
			c.accepted = true
		}
		if a.stream {
			a.serveStream()
		} else {
			a.serveWhole()
		}
	}
}

// accept reads a request up to the point where the engine may be asked.
func (e *Engine) accept(d *dialect, id string, w http.ResponseWriter, r *http.Request) (*answer, []sim.Request, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, nil, err
	}
	var req completionRequest
	if err := decode(body, &req); err != nil {
		return nil, nil, err
	}
	if err := e.checkModel(req.Model); err != nil {
		return nil, nil, err
	}
	limit, err := req.limit()
	if err != nil {
		return nil, nil, err
	}
	n, err := req.choices()
	if err != nil {
		return nil, nil, err
	}
	stops, err := req.stops()
	if err != nil {
		return nil, nil, err
	}
	prompts, err := e.prompts(d, &req)
	if err != nil {
		return nil, nil, err
	}
	if len(prompts)*n > maxChoices {
		return nil, nil, infer.Invalid("prompt", "%d prompts of %d choices are more than %d", len(prompts), n, maxChoices)
	}

	a := &answer{e: e, d: d, w: w, r: r, id: d.idPrefix + id, stream: req.Stream}
	a.usage = req.StreamOptions != nil && req.StreamOptions.IncludeUsage
	a.created = time.Now().Unix()
	a.box = outbox{wake: make(chan struct{}, 1)}
	a.choices = make([]choice, len(prompts)*n)
	a.fault, a.faulty = e.fault(id, func() []byte { return e.promptTexts(prompts) })

	var seed uint64
	if req.Seed != nil {
		seed = uint64(*req.Seed)
	}
	requests := make([]sim.Request, 0, len(a.choices))
	for i, prompt := range prompts {
		a.promptTokens += len(prompt)
		for k := range n {
			prepared, err := e.prepare.Prepare(sim.Params{
				Prompt: prompt, MaxTokens: limit, MinTokens: req.MinTokens,
				IgnoreEOS: req.IgnoreEOS, StopIDs: req.StopTokenIDs,
				// The choices of one prompt must differ.
				Seed:  seed + uint64(k)*0x9e3779b97f4a7c15,
				Stall: a.faulty && a.fault.Kind == sim.Stall, StallAfter: a.fault.After,
			})
			if err != nil {
				return nil, nil, err
			}
			requests = append(requests, prepared)
			c := &a.choices[i*n+k]
			c.job = job{box: &a.box, slot: uint32(i*n + k), seed: int64(seed)}
			c.stops.list = stops
		}
	}
	return a, requests, nil
}

func (e *Engine) prompts(d *dialect, req *completionRequest) ([][]uint32, error) {
	if d == chatDialect {
		return e.chatPrompt(req)
	}
	return e.textPrompts("prompt", req.Prompt)
}

func (e *Engine) promptTexts(prompts [][]uint32) []byte {
	var b []byte
	for _, p := range prompts {
		b = append(b, e.promptText(p)...)
	}
	return b
}
