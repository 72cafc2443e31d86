// Command dialogues has OpenAI's client for Go talk to a server, and prints what came of it as
// interop/real/clients/dialogue.py says: dialogues URL ENGINE.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const (
	model = "tiny"
	long  = 3000 // tokens of an answer that the model does not end by itself
)

func say(text string) string { return "say:" + base64.StdEncoding.EncodeToString([]byte(text)) + "." }

var (
	text    = say("The weir holds the river back, 世界.")
	calling = say("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"n\": 5}}\n</tool_call>")
	sunny   = say("Sunny.")
	schema  = map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer", "minimum": 1, "maximum": 9}}, "required": []string{"n"}, "additionalProperties": false}
)

type outcome map[string]any

type talk struct {
	ctx    context.Context
	client openai.Client
	engine string
}

func main() {
	t := &talk{context.Background(), openai.NewClient(option.WithBaseURL(os.Args[1]+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0)), os.Args[2]}
	out := json.NewEncoder(os.Stdout)
	for _, d := range []struct {
		name string
		run  func() (outcome, error)
	}{
		{"chat whole", t.chatWhole},
		{"chat streamed", t.chatStreamed},
		{"chat tool loop", t.chatLoop},
		{"chat bad field", func() (outcome, error) { return t.chat(openai.ChatCompletionNewParams{Temperature: openai.Float(-1)}) }},
		{"chat unknown model", func() (outcome, error) { return t.chat(openai.ChatCompletionNewParams{Model: "no-such-model"}) }},
		{"chat hang-up", t.chatLeave},
		{"responses whole", func() (outcome, error) { return t.respond(responses.ResponseNewParams{}) }},
		{"responses streamed", t.respondStreamed},
		{"responses bad field", func() (outcome, error) { return t.respond(responses.ResponseNewParams{Temperature: openai.Float(-1)}) }},
		{"responses unknown model", func() (outcome, error) { return t.respond(responses.ResponseNewParams{Model: "no-such-model"}) }},
		{"responses hang-up", t.respondLeave},
	} {
		o, err := d.run()
		var refused *openai.Error
		switch {
		case errors.As(err, &refused):
			names := []string{}
			for _, n := range []string{"temperature", "no-such-model"} {
				if strings.Contains(refused.Error()+refused.RawJSON(), n) {
					names = append(names, n)
				}
			}
			o = outcome{"error": fmt.Sprintf("%T", err), "status": refused.StatusCode, "names": names}
		case err != nil:
			o = outcome{"broke": err.Error()}
		}
		if err := out.Encode(map[string]any{"dialogue": d.name, "outcome": o}); err != nil {
			os.Exit(1)
		}
	}
}

// fields are those that every chat has, and more.
func (t *talk) fields(p openai.ChatCompletionNewParams) openai.ChatCompletionNewParams {
	if p.Model == "" {
		p.Model = model
	}
	if p.Messages == nil {
		p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}
	}
	if !p.Temperature.Valid() {
		p.Temperature = openai.Float(0)
	}
	if !p.MaxTokens.Valid() {
		p.MaxTokens = openai.Int(200)
	}
	return p
}

func usage(u openai.CompletionUsage) []int64 {
	return []int64{u.PromptTokens, u.CompletionTokens, u.TotalTokens}
}

func (t *talk) chat(p openai.ChatCompletionNewParams) (outcome, error) {
	r, err := t.client.Chat.Completions.New(t.ctx, t.fields(p))
	if err != nil {
		return nil, err
	}
	return outcome{"text": r.Choices[0].Message.Content, "end": r.Choices[0].FinishReason, "usage": usage(r.Usage)}, nil
}

func (t *talk) chatWhole() (outcome, error) { return t.chat(openai.ChatCompletionNewParams{}) }

func (t *talk) chatStreamed() (outcome, error) {
	s := t.client.Chat.Completions.NewStreaming(t.ctx, t.fields(openai.ChatCompletionNewParams{StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}}))
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		if !all.AddChunk(s.Current()) {
			return nil, fmt.Errorf("a chunk that does not fit: %s", s.Current().RawJSON())
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return outcome{"text": all.Choices[0].Message.Content, "end": all.Choices[0].FinishReason, "usage": usage(all.Usage)}, nil
}

func (t *talk) chatLoop() (outcome, error) {
	p := t.fields(openai.ChatCompletionNewParams{Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(calling)},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather", Parameters: schema})}})
	first, err := t.client.Chat.Completions.New(t.ctx, p)
	if err != nil {
		return nil, err
	}
	m := first.Choices[0].Message
	if len(m.ToolCalls) != 1 {
		return nil, fmt.Errorf("%d calls", len(m.ToolCalls))
	}
	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage(sunny, m.ToolCalls[0].ID))
	last, err := t.client.Chat.Completions.New(t.ctx, p)
	if err != nil {
		return nil, err
	}
	return outcome{"call": m.ToolCalls[0].Function.Name, "arguments": json.RawMessage(m.ToolCalls[0].Function.Arguments), "end": first.Choices[0].FinishReason,
		"text": last.Choices[0].Message.Content, "last": last.Choices[0].FinishReason}, nil
}

func (t *talk) chatLeave() (outcome, error) {
	p := t.fields(openai.ChatCompletionNewParams{Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("slowly: Hello")}, MaxTokens: openai.Int(long)})
	return leave(t, t.client.Chat.Completions.NewStreaming(t.ctx, p))
}

// leave reads five parts of a long answer, and leaves: the engine must end it long before it would.
func leave[T any](t *talk, s *ssestream.Stream[T]) (outcome, error) {
	before, err := t.metric("vllm:generation_tokens_total")
	if err != nil {
		return nil, err
	}
	for range 5 {
		if !s.Next() {
			return nil, fmt.Errorf("it ended: %w", s.Err())
		}
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		running, err := t.metric("vllm:num_requests_running")
		switch {
		case err != nil:
			return nil, err
		case running == 0:
			after, err := t.metric("vllm:generation_tokens_total")
			if after-before < long*2/3 {
				return outcome{"engine": "ended early"}, err
			}
			return outcome{"engine": "went on to the end"}, err
		case time.Now().After(end):
			return outcome{"engine": "still runs"}, nil
		}
	}
}

// metric is the sum of a metric's series at the engine.
func (t *talk) metric(name string) (sum float64, err error) {
	resp, err := http.Get(t.engine + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && strings.IndexAny(rest, "{ ") == 0 {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, lines.Err()
}

func (t *talk) response(p responses.ResponseNewParams) responses.ResponseNewParams {
	if p.Model == "" {
		p.Model = model
	}
	if !p.Input.OfString.Valid() {
		p.Input.OfString = openai.String(text)
	}
	if !p.Temperature.Valid() {
		p.Temperature = openai.Float(0)
	}
	if !p.MaxOutputTokens.Valid() {
		p.MaxOutputTokens = openai.Int(200)
	}
	return p
}

func responded(r *responses.Response) outcome {
	return outcome{"text": r.OutputText(), "end": r.Status, "usage": []int64{r.Usage.InputTokens, r.Usage.OutputTokens, r.Usage.TotalTokens}}
}

func (t *talk) respond(p responses.ResponseNewParams) (outcome, error) {
	r, err := t.client.Responses.New(t.ctx, t.response(p))
	if err != nil {
		return nil, err
	}
	return responded(r), nil
}

func (t *talk) respondStreamed() (outcome, error) {
	s := t.client.Responses.NewStreaming(t.ctx, t.response(responses.ResponseNewParams{}))
	var deltas strings.Builder
	var last responses.ResponseStreamEventUnion
	for s.Next() {
		if last = s.Current(); last.Type == "response.output_text.delta" {
			deltas.WriteString(last.Delta)
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	o := responded(&last.Response)
	o["deltas"], o["last"] = deltas.String(), last.Type
	return o, nil
}

func (t *talk) respondLeave() (outcome, error) {
	p := responses.ResponseNewParams{Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("slowly: Hello")}, MaxOutputTokens: openai.Int(long)}
	return leave(t, t.client.Responses.NewStreaming(t.ctx, t.response(p)))
}
