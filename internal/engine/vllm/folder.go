package vllm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
)

// chats are what the model's folder is compared by with the server's own rendering: what
// templates and tokenizers differ in.
var chats = [...]struct{ name, messages, tools string }{
	{"a chat", `[{"role":"user","content":"What is a weir?"}]`, ""},
	{"a chat with a system message", `[{"role":"system","content":"Answer in one word."},{"role":"user","content":"Is water wet?\n\n  Say it."},{"role":"assistant","content":"Yes."},{"role":"user","content":"And ice?"}]`, ""},
	{"a chat with tools", `[{"role":"user","content":"How warm is it in Delft?"}]`,
		`[{"type":"function","function":{"name":"weather","description":"Tells the weather.","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}]`},
	{"a chat in other languages", `[{"role":"user","content":"Straße, naïve, ½ · 水は流れる 물 · вода · ماء · नदी 🌊👩‍👩‍👧 1234567890 \u0301e"}]`, ""},
}

// compare returns how the ids of chats rendered with the model's folder differ from the
// ids that the server itself makes of them. It is empty if they do not differ, as far
// as the server can be asked.
func (e *Engine) compare(ctx context.Context, model string, prompt engine.Prompts) string {
	for _, c := range chats {
		own, err := prompt([]byte(c.messages), []byte(c.tools))
		if err != nil {
			continue // a template that takes no such chat
		}
		served, ok := e.tokenized(ctx, model, c.messages, c.tools)
		if !ok || slices.Equal(own, served) {
			continue
		}
		at := 0
		for at < min(len(own), len(served)) && own[at] == served[at] {
			at++
		}
		return fmt.Sprintf("its ids of %s are not those of the model's folder: %s there and %s here from id %d of %d and %d on; the folder is of another model, or the server has another chat template",
			c.name, from(served, at), from(own, at), at, len(served), len(own))
	}
	return ""
}

// from shows some ids from a place on.
func from(ids []uint32, at int) string {
	return strings.ReplaceAll(fmt.Sprint(ids[at:min(at+3, len(ids))]), " ", ",")
}

// tokenized has the server render and tokenize a chat; false: it does not.
func (e *Engine) tokenized(ctx context.Context, model, messages, tools string) ([]uint32, bool) {
	body := idstream.AppendString([]byte(`{"model":`), model)
	body = append(append(body, `,"add_generation_prompt":true,"messages":`...), messages...)
	if tools != "" {
		body = append(append(body, `,"tools":`...), tools...)
	}
	data, err := e.client.Post(ctx, "/tokenize", append(body, '}'))
	var said struct {
		Tokens []uint32 `json:"tokens"`
	}
	return said.Tokens, err == nil && json.Unmarshal(data, &said, jsontext.AllowDuplicateNames(true)) == nil && len(said.Tokens) > 0
}
