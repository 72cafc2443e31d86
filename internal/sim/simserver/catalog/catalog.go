// Package catalog lists the model of a simulated engine and its LoRA adapters.
package catalog

import (
	"net/http"
	"slices"
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/web"
)

// ModelCard is a model as /v1/models lists it.
type ModelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen *int   `json:"max_model_len"`
}

// engineCard is a model as vLLM and SGLang list it: LoRA adapters are models
// with a parent.
type engineCard struct {
	ModelCard
	Root   string  `json:"root"`
	Parent *string `json:"parent"`
}

// cards lists the engine's model and its LoRA adapters.
func cards(o *sim.Options, owner string) []ModelCard {
	list := []ModelCard{{ID: o.Model, MaxModelLen: &o.ContextLength}}
	for _, name := range o.LoRAs {
		list = append(list, ModelCard{ID: name})
	}
	for i := range list {
		list[i].Object, list[i].Created, list[i].OwnedBy = "model", 1700000000, owner
	}
	return list
}

// Plain serves /v1/models as OpenAI does.
func Plain(o *sim.Options, owner string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeModels(w, cards(o, owner)) }
}

// Full serves /v1/models as vLLM and SGLang do.
func Full(o *sim.Options, owner string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var list []engineCard
		for i, c := range cards(o, owner) {
			one := engineCard{ModelCard: c, Root: c.ID}
			if i > 0 {
				one.Parent = &o.Model
			}
			list = append(list, one)
		}
		writeModels(w, list)
	}
}

// writeModels answers with a list.
func writeModels[T any](w http.ResponseWriter, data []T) {
	web.WriteJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []T    `json:"data"`
	}{"list", data})
}

// One serves the card of one model.
func One(o *sim.Options, owner string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, c := range cards(o, owner) {
			if c.ID == r.PathValue("model") {
				web.WriteJSON(w, http.StatusOK, c)
				return
			}
		}
		web.WriteError(w, noModel(o, r.PathValue("model")))
	}
}

// noModel is the error of a name that is not the engine's.
func noModel(o *sim.Options, name string) error {
	return &infer.Error{Code: infer.CodeNotFound, Param: "model", Message: "the model " + strconv.Quote(name) + " does not exist; this engine serves " + strconv.Quote(o.Model)}
}

// LoRA returns the LoRA adapter that a request selects by its model, as OpenAI's API and vLLM
// do; empty is none. A request without a model gets the engine's own.
func LoRA(o *sim.Options, model string) (string, error) {
	switch {
	case model == "" || model == o.Model:
		return "", nil
	case slices.Contains(o.LoRAs, model):
		return model, nil
	}
	return "", noModel(o, model)
}
