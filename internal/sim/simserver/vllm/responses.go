package vllm

import (
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/speech"
	"weir/internal/sim/simserver/web"
)

// responsesRequest holds the fields of vLLM's /v1/responses that have an effect here or are
// repeated in the answer.
type responsesRequest struct {
	Model            string          `json:"model"`
	Input            jsontext.Value  `json:"input"`
	Instructions     *string         `json:"instructions"`
	MaxOutputTokens  *int            `json:"max_output_tokens"`
	Stream           bool            `json:"stream"`
	Tools            []responsesTool `json:"tools"`
	ToolChoice       jsontext.Value  `json:"tool_choice"`
	Parallel         *bool           `json:"parallel_tool_calls"`
	Reasoning        jsontext.Value  `json:"reasoning"`
	IncludeReasoning *bool           `json:"include_reasoning"`
	Text             jsontext.Value  `json:"text"`
	Previous         *string         `json:"previous_response_id"`
	Prompt           jsontext.Value  `json:"prompt"`
	Background       bool            `json:"background"`
	RequestID        string          `json:"request_id"`
	Seed             *int64          `json:"seed"`
	Stop             jsontext.Value  `json:"stop"`
	StopTokenIDs     []uint32        `json:"stop_token_ids"`
	IgnoreEOS        bool            `json:"ignore_eos"`
	Priority         int             `json:"priority"`
	Structured       jsontext.Value  `json:"structured_outputs"`
	TemplateKwargs   jsontext.Value  `json:"chat_template_kwargs"`
	KVTransferParams jsontext.Value  `json:"kv_transfer_params"`
	Include          []string        `json:"include"`
	fields.Salt
	fields.Distribution
	fields.Unread

	// Told again.
	Metadata     jsontext.Value `json:"metadata"`
	MaxToolCalls *int           `json:"max_tool_calls"`
	ServiceTier  string         `json:"service_tier"`
	TopLogprobs  int            `json:"top_logprobs"`
	Truncation   string         `json:"truncation"`
	User         *string        `json:"user"`
}

// responsesTool is a tool. Those of other types than these a model is not shown.
type responsesTool struct {
	raw jsontext.Value

	Type        string          `json:"type"` // function, custom or namespace
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  jsontext.Value  `json:"parameters"`
	Strict      *bool           `json:"strict"`
	Tools       []responsesTool `json:"tools"` // of a namespace
}

// UnmarshalJSON keeps a tool as it came, too.
func (t *responsesTool) UnmarshalJSON(b []byte) error {
	type plain responsesTool
	if err := json.Unmarshal(b, (*plain)(t)); err != nil {
		return err
	}
	t.raw = jsontext.Value(b).Clone()
	return nil
}

// customInput are the parameters of a tool that takes any text: a model is shown it as a
// function of one string.
const customInput = `{"type":"object","properties":{"input":{"type":"string","description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}`

// namedTool is the name and type under which a call to a tool is reported.
type namedTool struct {
	name, namespace string
	custom          bool
}

// shown returns the tools that the model sees, and how calls to each of them are reported.
func shown(tools []responsesTool) (all []chatTool, names map[string]namedTool) {
	names = map[string]namedTool{}
	add := func(t *responsesTool, name string, parameters jsontext.Value, as namedTool) {
		all = append(all, chatTool{"function", chatFunction{name, t.Description, parameters, t.Strict}})
		names[name] = as
	}
	for i := range tools {
		switch t := &tools[i]; t.Type {
		case "function":
			add(t, t.Name, t.Parameters, namedTool{name: t.Name})
		case "custom":
			add(t, t.Name, jsontext.Value(customInput), namedTool{name: t.Name, custom: true})
		case "namespace":
			for j := range t.Tools {
				if in := &t.Tools[j]; in.Type == "function" {
					add(in, t.Name+"__"+in.Name, in.Parameters, namedTool{name: in.Name, namespace: t.Name})
				}
			}
		}
	}
	return all, names
}

// responsesItem is an item of the input.
type responsesItem struct {
	Type      string         `json:"type"`
	Role      string         `json:"role"`
	Content   jsontext.Value `json:"content"`
	CallID    string         `json:"call_id"`
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Arguments string         `json:"arguments"`
	Input     string         `json:"input"`
	Output    jsontext.Value `json:"output"`
	Encrypted string         `json:"encrypted_content"`
	Summary   []struct {
		Text string `json:"text"`
	} `json:"summary"`
}

// contentOf reads content: a string, or parts of text and images.
func contentOf(v jsontext.Value) (any, error) {
	var text string
	if v.Kind() == '"' {
		err := json.Unmarshal(v, &text)
		return text, err
	}
	var parts []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Image string `json:"image_url"`
	}
	if err := json.Unmarshal(v, &parts); err != nil {
		return nil, infer.Invalid("input", "input: content must be a string or a list of parts: %v", err)
	}
	var all []chatPart
	for _, p := range parts {
		switch p.Type {
		case "input_text", "output_text", "text":
			all = append(all, chatPart{Type: "text", Text: p.Text})
		case "input_image":
			all = append(all, imagePart(p.Image))
		case "refusal":
		default:
			return nil, infer.Invalid("input", "input: a part of content is of type %q; it must be input_text, output_text or input_image", p.Type)
		}
	}
	if len(all) == 1 && all[0].Type == "text" {
		return all[0].Text, nil
	}
	return all, nil
}

// chat makes the messages of a chat of the request's.
func (r *responsesRequest) chat() (jsontext.Value, error) {
	var all []chatMessage
	if r.Instructions != nil && *r.Instructions != "" {
		all = append(all, chatMessage{Role: "system", Content: *r.Instructions})
	}
	if r.Input.Kind() == '"' {
		content, err := contentOf(r.Input)
		if err != nil {
			return nil, err
		}
		return chatJSON("input", append(all, chatMessage{Role: "user", Content: content}))
	}
	var items []responsesItem
	if err := json.Unmarshal(r.Input, &items); err != nil {
		return nil, infer.Invalid("input", "input must be a string or a list of items: %v", err)
	}
	for i := range items {
		var err error
		if all, err = appendItem(all, &items[i]); err != nil {
			return nil, err
		}
	}
	return chatJSON("input", all)
}

// appendItem appends an item as a message of a chat. Consecutive texts, reasoning and calls
// of an assistant become one message.
func appendItem(all []chatMessage, it *responsesItem) ([]chatMessage, error) {
	assistant := func() *chatMessage {
		if n := len(all); n > 0 && all[n-1].Role == "assistant" {
			return &all[n-1]
		}
		all = append(all, chatMessage{Role: "assistant"})
		return &all[len(all)-1]
	}
	switch {
	case it.Type == "function_call":
		name := it.Name
		if it.Namespace != "" {
			name = it.Namespace + "__" + name
		}
		m := assistant()
		m.ToolCalls = append(m.ToolCalls, newChatCall(it.CallID, name, it.Arguments))
	case it.Type == "custom_tool_call":
		m := assistant()
		m.ToolCalls = append(m.ToolCalls, newChatCall(it.CallID, it.Name, `{"input": `+web.Quote(it.Input)+`}`))
	case it.Type == "function_call_output", it.Type == "custom_tool_call_output":
		output, err := contentOf(it.Output)
		if err != nil {
			return nil, err
		}
		all = append(all, chatMessage{Role: "tool", ToolCallID: it.CallID, Content: output})
	case it.Type == "reasoning":
		if it.Encrypted != "" {
			return nil, infer.Invalid("input", "Encrypted content is not supported.")
		}
		text := ""
		var parts []struct {
			Text string `json:"text"`
		}
		if !fields.IsNull(it.Content) {
			if err := json.Unmarshal(it.Content, &parts); err != nil {
				return nil, infer.Invalid("input", "input: the content of reasoning must be a list of parts: %v", err)
			}
		}
		if parts = append(parts, it.Summary...); len(parts) > 0 {
			text = parts[0].Text
		}
		if m := assistant(); m.Reasoning == "" {
			m.Reasoning = text
		}
	case it.Role != "" && (it.Type == "message" || it.Type == ""):
		content, err := contentOf(it.Content)
		if err != nil {
			return nil, err
		}
		if n := len(all); it.Role == "assistant" && n > 0 && all[n-1].Role == "assistant" && all[n-1].Content == nil {
			all[n-1].Content = content
		} else {
			all = append(all, chatMessage{Role: it.Role, Content: content})
		}
	default:
		return nil, infer.Invalid("input", "Unsupported input item type: %s", it.Type)
	}
	return all, nil
}

// completion makes a chat of the request.
func (r *responsesRequest) completion(tools []chatTool) (req *completion.Request, err error) {
	req = &completion.Request{Model: r.Model, MaxTokens: r.MaxOutputTokens, Stream: r.Stream, Seed: r.Seed, Stop: r.Stop, StopTokenIDs: r.StopTokenIDs,
		IgnoreEOS: r.IgnoreEOS, Priority: r.Priority, KVTransferParams: r.KVTransferParams, Salt: r.Salt,
		Distribution: r.Distribution}
	req.StructuredOutputs, req.TemplateKwargs, req.ParallelToolCalls = r.Structured, r.TemplateKwargs, r.Parallel != nil && *r.Parallel
	if req.Messages, err = r.chat(); err != nil {
		return nil, err
	}
	if tools != nil {
		if req.Tools, err = chatJSON("tools", tools); err != nil {
			return nil, err
		}
	}
	if req.ToolChoice = r.ToolChoice; r.ToolChoice.Kind() == '{' {
		var named struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(r.ToolChoice, &named) != nil || named.Name == "" {
			return nil, infer.Invalid("tool_choice", "tool_choice must be auto, none, required or name a function")
		}
		req.ToolChoice = jsontext.Value(`{"type":"function","function":{"name":` + web.Quote(named.Name) + `}}`)
	}
	if !fields.IsNull(r.Reasoning) {
		var said struct {
			Effort *string `json:"effort"`
		}
		if err := json.Unmarshal(r.Reasoning, &said); err != nil {
			return nil, infer.Invalid("reasoning", "reasoning is not valid: %v", err)
		}
		req.ReasoningEffort = said.Effort
	}
	return req, r.format(req)
}

// format reads text.format.
func (r *responsesRequest) format(req *completion.Request) error {
	if fields.IsNull(r.Text) {
		return nil
	}
	var text struct {
		Format struct {
			Type   string         `json:"type"`
			Schema jsontext.Value `json:"schema"`
		} `json:"format"`
	}
	if err := json.Unmarshal(r.Text, &text); err != nil {
		return infer.Invalid("text", "text is not valid: %v", err)
	}
	switch text.Format.Type {
	case "", "text":
	case "json_object":
		req.ResponseFormat = jsontext.Value(`{"type":"json_object"}`)
	case "json_schema":
		if fields.IsNull(text.Format.Schema) {
			return infer.Invalid("text", "text.format.schema is missing")
		}
		req.ResponseFormat = jsontext.Value(`{"type":"json_schema","json_schema":{"schema":` + string(text.Format.Schema) + `}}`)
	default:
		return infer.Invalid("text", "text.format.type is %q; it must be text, json_object or json_schema", text.Format.Type)
	}
	if req.ResponseFormat != nil && !fields.IsNull(r.Structured) {
		return infer.Invalid("structured_outputs", "Cannot specify both structured_outputs and text.format")
	}
	return nil
}

// noResponse is the error of an answer that is not kept.
func noResponse(id string) error {
	return &infer.Error{Code: infer.CodeNotFound, Param: "response_id", Message: "Response with id '" + id + "' not found."}
}

// acceptResponses reads a request to /v1/responses.
func acceptResponses(a *completion.Answer, body []byte) (*completion.Request, completion.API, error) {
	r := responsesRequest{ServiceTier: "auto", Truncation: "disabled"}
	if err := web.Decode(body, &r); err != nil {
		return nil, nil, err
	}
	switch {
	case r.Previous != nil:
		return nil, nil, noResponse(*r.Previous)
	case !fields.IsNull(r.Prompt):
		return nil, nil, infer.Invalid("prompt", "prompt template is not supported")
	case r.Background:
		return nil, nil, infer.Invalid("background", "this vLLM engine keeps no answers, and so has no background mode")
	case fields.IsNull(r.Input):
		return nil, nil, infer.Invalid("input", "input is missing")
	case slices.Contains(r.Include, "message.output_text.logprobs"):
		return nil, nil, fields.NotSimulated("include")
	}
	if err := answersLacks.Refuse(r.Rest); err != nil {
		return nil, nil, err
	}
	tools, names := shown(r.Tools)
	req, err := r.completion(tools)
	as := &responsesAnswer{Answer: a, request: &r, names: names, responseID: r.RequestID, createdAt: time.Now().Unix()}
	if as.responseID == "" {
		as.responseID = "resp_" + a.ID
	}
	return req, as, err
}

// responsesAnswer is an answer in OpenAI's Responses API.
type responsesAnswer struct {
	*completion.Answer
	request    *responsesRequest
	names      map[string]namedTool
	responseID string

	createdAt int64 // Unix seconds
	sequence  int
	items     []any           // that have ended
	kind      speech.Kind     // of the item under way
	begun     bool            // there is one
	itemID    string          // its id
	said      strings.Builder // its text
	call      string          // of a call
	tool      namedTool       // likewise
}

// The items of an answer.
type (
	textPart struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		Annotations []any  `json:"annotations"`
		Logprobs    any    `json:"logprobs"`
	}
	messageItem struct {
		ID      string `json:"id"`
		Type    string `json:"type"`
		Role    string `json:"role"`
		Status  string `json:"status"`
		Content []any  `json:"content"`
		Phase   any    `json:"phase"`
	}
	reasoningPart struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	reasoningItem struct {
		ID        string `json:"id"`
		Type      string `json:"type"`
		Summary   []any  `json:"summary"`
		Content   any    `json:"content"`
		Encrypted any    `json:"encrypted_content"`
		Status    any    `json:"status"`
	}
	callItem struct {
		ID        string  `json:"id"`
		Type      string  `json:"type"`
		CallID    string  `json:"call_id"`
		Name      string  `json:"name"`
		Namespace *string `json:"namespace"`
		Arguments string  `json:"arguments"`
		Status    string  `json:"status"`
	}
	customItem struct {
		ID     string `json:"id"`
		Type   string `json:"type"`
		CallID string `json:"call_id"`
		Name   string `json:"name"`
		Input  string `json:"input"`
	}
)

func newText(text string) textPart {
	return textPart{Type: "output_text", Text: text, Annotations: []any{}}
}

// call returns the item of a call.
func (t namedTool) call(id, callID, arguments, status string) any {
	if t.custom {
		var of struct {
			Input *string `json:"input"`
		}
		input := arguments
		if json.Unmarshal([]byte(arguments), &of) == nil && of.Input != nil {
			input = *of.Input
		}
		return customItem{ID: id, Type: "custom_tool_call", CallID: callID, Name: t.name, Input: input}
	}
	item := callItem{ID: id, Type: "function_call", CallID: callID, Name: t.name, Arguments: arguments, Status: status}
	if t.namespace != "" {
		item.Namespace = &t.namespace
	}
	return item
}

// named returns how a call is reported.
func (r *responsesAnswer) named(name string) namedTool {
	if t, ok := r.names[name]; ok {
		return t
	}
	return namedTool{name: name}
}

// responsesUsage is the usage of the answer. Its lists have one turn.
type responsesUsage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached        int   `json:"cached_tokens"`
		CacheWrite    int   `json:"cache_write_tokens"`
		InputPerTurn  []int `json:"input_tokens_per_turn"`
		CachedPerTurn []int `json:"cached_tokens_per_turn"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning     int   `json:"reasoning_tokens"`
		Tool          int   `json:"tool_output_tokens"`
		OutputPerTurn []int `json:"output_tokens_per_turn"`
		ToolPerTurn   []int `json:"tool_output_tokens_per_turn"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

func (r *responsesAnswer) usage() *responsesUsage {
	u := &responsesUsage{Input: r.PromptTokens, Output: r.Completion()}
	u.Total = u.Input + u.Output
	for i := range r.Outputs {
		u.InputDetails.Cached += r.Outputs[i].Cached
	}
	return u
}

// response returns the object response.
func (r *responsesAnswer) response(status string, items []any, usage *responsesUsage) any {
	q := r.request
	orNull := func(v jsontext.Value) any {
		if fields.IsNull(v) {
			return nil
		}
		return v
	}
	tools := []jsontext.Value{}
	for i := range q.Tools {
		tools = append(tools, q.Tools[i].raw)
	}
	choice := q.ToolChoice
	if fields.IsNull(choice) {
		choice = jsontext.Value(`"auto"`)
	}
	temperature, top := 1.0, 1.0
	if q.Temperature != nil {
		temperature = *q.Temperature
	}
	if q.TopP != nil {
		top = *q.TopP
	}
	limit := r.Run.Options().ContextLength - r.PromptTokens
	if q.MaxOutputTokens != nil {
		limit = min(limit, *q.MaxOutputTokens)
	}
	var incomplete any
	if status == "incomplete" {
		incomplete = map[string]string{"reason": "max_output_tokens"}
	}
	if items == nil {
		items = []any{}
	}
	var params any
	if o := &r.Outputs[0]; usage != nil && o.Pair != nil && o.Pair.Kept != nil {
		params = jsontext.Value(r.AppendTransferParams(nil, o))
	}
	return map[string]any{
		"id": r.responseID, "created_at": r.createdAt, "incomplete_details": incomplete, "instructions": q.Instructions, "metadata": orNull(q.Metadata), "model": r.Model, "object": "response",
		"output": items, "parallel_tool_calls": q.Parallel == nil || *q.Parallel, "temperature": temperature, "tool_choice": choice, "tools": tools, "top_p": top, "background": false,
		"max_output_tokens": limit, "max_tool_calls": q.MaxToolCalls, "previous_response_id": nil, "prompt": nil, "reasoning": orNull(q.Reasoning), "service_tier": q.ServiceTier, "status": status,
		"text": orNull(q.Text), "top_logprobs": q.TopLogprobs, "truncation": q.Truncation, "usage": usage, "user": q.User, "presence_penalty": fields.ValueOr(q.PresencePenalty, 0), "frequency_penalty": fields.ValueOr(q.FrequencyPenalty, 0),
		"kv_transfer_params": params, "ec_transfer_params": nil, "input_messages": nil, "output_messages": nil,
	}
}

// send appends an event: its type, its number and its other members.
func (r *responsesAnswer) send(b []byte, name string, data map[string]any) []byte {
	data["type"], data["sequence_number"] = name, r.sequence
	r.sequence++
	return sendEvent(b, name, data)
}

// about appends an event about the item under way.
func (r *responsesAnswer) about(b []byte, name string, data map[string]any) []byte {
	data["output_index"] = len(r.items)
	if data["item"] == nil {
		data["item_id"] = r.itemID
	}
	return r.send(b, name, data)
}

// Event implements exchange.Form.
func (r *responsesAnswer) Event(b []byte, o *exchange.Output) []byte {
	if o.Failure != nil {
		r.Failed = true
		e := infer.AsError(o.Failure)
		status, _ := web.StatusOf(e.Code)
		return r.send(b, "error", map[string]any{"code": strconv.Itoa(status), "message": e.Message, "param": nil})
	}
	if !o.Began {
		for _, name := range []string{"response.created", "response.in_progress"} {
			b = r.send(b, name, map[string]any{"response": r.response("in_progress", nil, nil)})
		}
	}
	for _, p := range r.Parts(o) {
		b = r.part(b, &p)
	}
	o.Clear()
	return b
}

// part appends the events of a part.
func (r *responsesAnswer) part(b []byte, p *speech.Part) []byte {
	switch p.Kind {
	case speech.Text:
		if !r.begun || r.kind != speech.Text {
			b = r.open(b, speech.Text, "msg_")
			b = r.about(b, "response.output_item.added", map[string]any{"item": messageItem{ID: r.itemID, Type: "message", Role: "assistant", Status: "in_progress", Content: []any{}}})
			part := newText("")
			part.Logprobs = []any{}
			b = r.about(b, "response.content_part.added", map[string]any{"content_index": 0, "part": part})
		}
		r.said.WriteString(p.Text)
		return r.about(b, "response.output_text.delta", map[string]any{"content_index": 0, "delta": p.Text, "logprobs": []any{}})
	case speech.Reasoning:
		if r.request.IncludeReasoning != nil && !*r.request.IncludeReasoning {
			return b
		}
		if !r.begun || r.kind != speech.Reasoning {
			b = r.open(b, speech.Reasoning, "rs_")
			b = r.about(b, "response.output_item.added", map[string]any{"item": reasoningItem{ID: r.itemID, Type: "reasoning", Summary: []any{}, Status: "in_progress"}})
			b = r.about(b, "response.content_part.added", map[string]any{"content_index": 0, "part": reasoningPart{"reasoning_text", ""}})
		}
		r.said.WriteString(p.Text)
		return r.about(b, "response.reasoning_text.delta", map[string]any{"content_index": 0, "delta": p.Text})
	case speech.CallBegins:
		tool, prefix := r.named(p.Text), "fc_"
		if tool.custom {
			prefix = "ctc_"
		}
		b = r.open(b, speech.CallBegins, prefix)
		r.tool, r.call = tool, r.CallID()
		return r.about(b, "response.output_item.added", map[string]any{"item": tool.call(r.itemID, r.call, "", "in_progress")})
	}
	r.said.WriteString(p.Text)
	if r.tool.custom {
		return b // its input is told at its end
	}
	return r.about(b, "response.function_call_arguments.delta", map[string]any{"delta": p.Text})
}

// open begins an item.
func (r *responsesAnswer) open(b []byte, kind speech.Kind, prefix string) []byte {
	b = r.close(b)
	r.begun, r.kind, r.itemID = true, kind, prefix+rand.Text()
	r.said.Reset()
	return b
}

// close ends the item under way.
func (r *responsesAnswer) close(b []byte) []byte {
	if !r.begun {
		return b
	}
	r.begun = false
	text := r.said.String()
	var item any
	switch r.kind {
	case speech.Text:
		part := newText(text)
		b = r.about(b, "response.output_text.done", map[string]any{"content_index": 0, "text": text, "logprobs": []any{}})
		b = r.about(b, "response.content_part.done", map[string]any{"content_index": 0, "part": part})
		item = messageItem{ID: r.itemID, Type: "message", Role: "assistant", Status: "completed", Content: []any{part}}
	case speech.Reasoning:
		part := reasoningPart{"reasoning_text", text}
		b = r.about(b, "response.reasoning_text.done", map[string]any{"content_index": 0, "text": text})
		b = r.about(b, "response.content_part.done", map[string]any{"content_index": 0, "part": part})
		item = reasoningItem{ID: r.itemID, Type: "reasoning", Summary: []any{}, Content: []any{part}, Status: "completed"}
	default:
		item = r.tool.call(r.itemID, r.call, text, "completed")
		if custom, ok := item.(customItem); ok {
			b = r.about(b, "response.custom_tool_call_input.delta", map[string]any{"delta": custom.Input})
			b = r.about(b, "response.custom_tool_call_input.done", map[string]any{"input": custom.Input})
		} else {
			b = r.about(b, "response.function_call_arguments.done", map[string]any{"arguments": text, "name": r.tool.name})
		}
	}
	b = r.about(b, "response.output_item.done", map[string]any{"item": item})
	r.items = append(r.items, item)
	return b
}

// Stray implements exchange.Form.
func (r *responsesAnswer) Stray(b []byte) []byte {
	return r.send(b, "response.output_text.delta", map[string]any{"output_index": completion.StrayChoice, "item_id": "msg_x", "content_index": 0, "delta": "x", "logprobs": []any{}})
}

// status is how the answer ended.
func (r *responsesAnswer) status() string {
	if r.Outputs[0].Reason == infer.ReasonLength {
		return "incomplete"
	}
	return "completed"
}

// End implements exchange.Form.
func (r *responsesAnswer) End(b []byte) []byte {
	if r.Failed {
		return b
	}
	b = r.close(b)
	return r.send(b, "response.completed", map[string]any{"response": r.response(r.status(), r.items, r.usage())})
}

// WholeBody implements completion.API.
func (r *responsesAnswer) WholeBody() []byte {
	said := r.Spoken(&r.Outputs[0])
	var items []any
	if said.Reasoning != "" && (r.request.IncludeReasoning == nil || *r.request.IncludeReasoning) {
		items = append(items, reasoningItem{ID: "rs_" + rand.Text(), Type: "reasoning", Summary: []any{}, Content: []any{reasoningPart{"reasoning_text", said.Reasoning}}})
	}
	if said.Text != "" {
		items = append(items, messageItem{ID: "msg_" + rand.Text(), Type: "message", Role: "assistant", Status: "completed", Content: []any{newText(said.Text)}})
	}
	for _, c := range said.Calls {
		items = append(items, r.named(c.Name).call("fc_"+rand.Text(), r.CallID(), c.Arguments, "completed"))
	}
	return marshal(r.response(r.status(), items, r.usage()))
}
