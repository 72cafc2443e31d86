package cli

import (
	"net/http"
	"time"

	"weir/internal/gateway/record"
	"weir/internal/trace"
)

// maxRequests bounds the requests in flight of one answer.
const maxRequests = 1000

// inFlightView is the answer of /requests.
type inFlightView struct {
	Total    int            `json:"total"`
	Stages   []stageCount   `json:"stages"` // those with any, in their order
	Matched  int            `json:"matched"`
	Requests []inFlightItem `json:"requests"` // the oldest first
}

// stageCount is how many requests are in a stage.
type stageCount struct {
	Stage    string `json:"stage"`
	Requests int    `json:"requests"`
}

// inFlightItem is a request that has not ended. Unknown values are left out.
type inFlightItem struct {
	RequestID     string   `json:"request_id"`
	Model         string   `json:"model,omitzero"`
	Endpoint      string   `json:"endpoint"`
	Dialect       string   `json:"dialect"`
	Stream        bool     `json:"stream"`
	Client        string   `json:"client,omitzero"`
	Engine        string   `json:"engine,omitzero"`
	PrefillEngine string   `json:"prefill_engine,omitzero"`
	Attempt       int      `json:"attempt,omitzero"`
	Stage         string   `json:"stage"`
	InStage       *float64 `json:"stage_seconds,omitzero"`
	Age           float64  `json:"age_seconds"`
	Arrived       string   `json:"wall_time"`
	Prompt        int      `json:"prompt_tokens,omitzero"`
	Tokens        *int     `json:"tokens,omitzero"`
}

// requests shows the requests that have not ended, the oldest first.
func (p *process) requests(w http.ResponseWriter, r *http.Request) {
	given := paramsOf(r, "limit", "model", "engine", "stage")
	q := record.Query{Model: given.text("model"), Engine: given.text("engine"), Stage: trace.NumStages, Limit: given.number("limit", 100, maxRequests)}
	if name := given.text("stage"); name != "" {
		stage, err := trace.ParseStage(name)
		if err != nil {
			given.wrong("%w", err)
		}
		q.Stage = stage
	}
	if given.refused(w) {
		return
	}
	found := p.gateway.InFlight(q)
	now := trace.Now()
	view := inFlightView{Total: found.Total, Matched: found.Matched, Stages: []stageCount{}, Requests: make([]inFlightItem, len(found.Requests))}
	for s, n := range found.Stages {
		if n > 0 {
			view.Stages = append(view.Stages, stageCount{trace.Stage(s).String(), n})
		}
	}
	for i := range found.Requests {
		u := &found.Requests[i]
		v := inFlightItem{RequestID: u.RequestID, Model: u.Model, Endpoint: u.Endpoint, Dialect: u.Dialect, Stream: u.Stream, Engine: u.Engine, PrefillEngine: u.PrefillEngine,
			Attempt: u.Attempt, Stage: u.Stage.String(), Age: seconds(now - u.Arrival), Arrived: trace.Wall(u.Arrival).UTC().Format(time.RFC3339Nano), Prompt: u.PromptTokens}
		if u.Client.IsValid() {
			v.Client = u.Client.String()
		}
		if u.Since != 0 {
			v.InStage = new(max(seconds(now-u.Since), 0))
		}
		if u.Tokens >= 0 {
			v.Tokens = &u.Tokens
		}
		view.Requests[i] = v
	}
	writeView(w, view)
}
