// Command gosdk checks weir through OpenAI's client for Go:
//
//	gosdk URL
//	gosdk broken URL    where the engine breaks each stream
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const ask = "What is the weather in Bern?"

var schema = map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}, "additionalProperties": false}

func main() {
	client := openai.NewClient(option.WithBaseURL(os.Args[len(os.Args)-1]+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ctx, failed := context.Background(), false
	type check struct {
		name string
		run  func() error
	}
	checks := []check{
		{"chat_loop", func() error { return chatLoop(ctx, &client) }},
		{"chat_stream", func() error { return chatStream(ctx, &client) }},
		{"chat_document", func() error { return document(ctx, &client) }},
		{"responses", func() error { return respond(ctx, &client) }},
		{"models", func() error {
			list, err := client.Models.List(ctx)
			if err == nil && (len(list.Data) != 1 || list.Data[0].ID != "weir-sim") {
				err = fmt.Errorf("%+v", list.Data)
			}
			return err
		}},
	}
	if os.Args[1] == "broken" {
		checks = []check{
			{"chat_broken", func() error { return chatBroken(ctx, &client) }},
			{"responses_broken", func() error { return respondBroken(ctx, &client) }},
		}
	}
	out := json.NewEncoder(os.Stdout)
	for _, c := range checks {
		detail := ""
		if err := c.run(); err != nil {
			detail, failed = err.Error(), true
		}
		_ = out.Encode(map[string]any{"check": c.name, "ok": detail == "", "detail": detail})
	}
	_ = out.Encode(map[string]any{"checks": len(checks)})
	if failed {
		os.Exit(1)
	}
}

// words wants what the simulated engine says.
func words(text string) error {
	if len(strings.Fields(text)) == 0 {
		return fmt.Errorf("%q", text)
	}
	return nil
}

func chatLoop(ctx context.Context, client *openai.Client) error {
	p := openai.ChatCompletionNewParams{Model: "weir-sim", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather", Parameters: schema})}}
	first, err := client.Chat.Completions.New(ctx, p)
	if err != nil {
		return err
	}
	calls := first.Choices[0].Message.ToolCalls
	if len(calls) != 1 || calls[0].Function.Name != "weather" || !json.Valid([]byte(calls[0].Function.Arguments)) {
		return fmt.Errorf("calls %+v", calls)
	}
	p.Messages = append(p.Messages, first.Choices[0].Message.ToParam(), openai.ToolMessage("rain", calls[0].ID))
	last, err := client.Chat.Completions.New(ctx, p)
	if err != nil {
		return err
	}
	if n := len(last.Choices[0].Message.ToolCalls); n > 0 {
		return fmt.Errorf("%d calls again", n)
	}
	return words(last.Choices[0].Message.Content)
}

func chatStream(ctx context.Context, client *openai.Client) error {
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "weir-sim", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}})
	var all openai.ChatCompletionAccumulator
	chunks := 0
	for stream.Next() {
		all.AddChunk(stream.Current())
		chunks++
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if chunks < 2 || all.Usage.CompletionTokens == 0 {
		return fmt.Errorf("%d chunks, %+v", chunks, all.Usage)
	}
	return words(all.Choices[0].Message.Content)
}

func document(ctx context.Context, client *openai.Client) error {
	r, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "weir-sim", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)},
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "report", Schema: schema, Strict: openai.Bool(true)}}}})
	if err != nil {
		return err
	}
	var report struct{ City *string }
	if err := json.Unmarshal([]byte(r.Choices[0].Message.Content), &report); err != nil || report.City == nil {
		return fmt.Errorf("%v: %s", err, r.Choices[0].Message.Content)
	}
	return nil
}

func respond(ctx context.Context, client *openai.Client) error {
	r, err := client.Responses.New(ctx, responses.ResponseNewParams{Model: "weir-sim", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(ask)}})
	if err != nil {
		return err
	}
	return words(r.OutputText())
}

// chatBroken wants the reason of a stream that breaks.
func chatBroken(ctx context.Context, client *openai.Client) error {
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "weir-sim", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(ask)}})
	text := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text += c.Delta.Content
		}
	}
	return broke(text, stream.Err())
}

func respondBroken(ctx context.Context, client *openai.Client) error {
	stream := client.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "weir-sim", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(ask)}})
	text := ""
	for stream.Next() {
		if e := stream.Current(); e.Type == "response.output_text.delta" {
			text += e.Delta
		}
	}
	return broke(text, stream.Err())
}

// broke wants an error that says what happened to the engine, after some text.
func broke(text string, err error) error {
	if err == nil || text == "" || !strings.Contains(err.Error(), "engine") {
		return fmt.Errorf("after %q: %v", text, err)
	}
	return nil
}
