package vllm

import (
	"crypto/rand"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/speech"
	"weir/internal/sim/simserver/web"
)

// messagesRequest holds the fields of vLLM's /v1/messages that have an effect here.
type messagesRequest struct {
	Model         string            `json:"model"`
	Messages      []messagesMessage `json:"messages"`
	System        jsontext.Value    `json:"system"`
	MaxTokens     *int              `json:"max_tokens"`
	StopSequences []string          `json:"stop_sequences"`
	Stream        bool              `json:"stream"`
	Tools         []struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Schema      jsontext.Value `json:"input_schema"`
		Strict      *bool          `json:"strict"`
	} `json:"tools"`
	ToolChoice *struct {
		Type            string `json:"type"`
		Name            string `json:"name"`
		DisableParallel *bool  `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	Thinking *struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	OutputConfig *struct {
		Effort string `json:"effort"`
		Format *struct {
			Schema jsontext.Value `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	TemplateKwargs   jsontext.Value `json:"chat_template_kwargs"`
	KVTransferParams jsontext.Value `json:"kv_transfer_params"`
	fields.Salt
	fields.Distribution
	fields.Unread
}

type messagesMessage struct {
	Role    string         `json:"role"`
	Content jsontext.Value `json:"content"`
}

// messagesBlock is a block of a message's content.
type messagesBlock struct {
	Type   string `json:"type"`
	Text   string `json:"text"`
	Source struct {
		Type  string `json:"type"`
		Media string `json:"media_type"`
		Data  string `json:"data"`
		URL   string `json:"url"`
	} `json:"source"`
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Input     jsontext.Value `json:"input"`
	ToolUseID string         `json:"tool_use_id"`
	Content   jsontext.Value `json:"content"`
	Thinking  string         `json:"thinking"`
}

// image returns the URL of an image block.
func (b *messagesBlock) image() string {
	if b.Source.Type == "url" {
		return b.Source.URL
	}
	return "data:" + b.Source.Media + ";base64," + b.Source.Data
}

// blocksOf reads content: a string is one block of text.
func blocksOf(param string, v jsontext.Value) (blocks []messagesBlock, err error) {
	if v.Kind() == '"' {
		one := messagesBlock{Type: "text"}
		err = json.Unmarshal(v, &one.Text)
		blocks = []messagesBlock{one}
	} else if !fields.IsNull(v) {
		err = json.Unmarshal(v, &blocks)
	}
	if err != nil {
		return nil, infer.Invalid(param, "%s must be a string or a list of blocks: %v", param, err)
	}
	return blocks, nil
}

// billing begins a block of Claude Code's that differs in each request; vLLM leaves it out.
const billing = "x-anthropic-billing-header"

// systemText returns the text of system blocks.
func systemText(blocks []messagesBlock) string {
	var text strings.Builder
	for _, b := range blocks {
		if b.Type == "text" && !strings.HasPrefix(b.Text, billing) {
			text.WriteString(b.Text)
		}
	}
	return text.String()
}

// chat makes the messages of a chat of the request's.
func (r *messagesRequest) chat() (jsontext.Value, error) {
	var all []chatMessage
	system, err := blocksOf("system", r.System)
	if err != nil {
		return nil, err
	}
	if text := systemText(system); text != "" {
		all = append(all, chatMessage{Role: "system", Content: text})
	}
	for _, m := range r.Messages {
		blocks, err := blocksOf("messages", m.Content)
		if err != nil {
			return nil, err
		}
		switch m.Role {
		case "system":
			if text := systemText(blocks); text != "" {
				all = append(all, chatMessage{Role: "system", Content: text})
			}
		case "user", "assistant":
			if all, err = appendMessage(all, m.Role, blocks); err != nil {
				return nil, err
			}
		default:
			return nil, infer.Invalid("messages", "messages: the role is %q; it must be user, assistant or system", m.Role)
		}
	}
	return chatJSON("messages", all)
}

// appendMessage makes a chat's messages of a message's blocks: one, behind a message for
// each result of a tool.
func appendMessage(all []chatMessage, role string, blocks []messagesBlock) ([]chatMessage, error) {
	one := chatMessage{Role: role}
	var parts []chatPart
	for i := range blocks {
		switch b := &blocks[i]; b.Type {
		case "text":
			if b.Text != "" {
				parts = append(parts, chatPart{Type: "text", Text: b.Text})
			}
		case "image":
			parts = append(parts, imagePart(b.image()))
		case "thinking":
			one.Reasoning += b.Thinking
		case "tool_use":
			arguments := string(b.Input)
			if fields.IsNull(b.Input) {
				arguments = "{}"
			}
			one.ToolCalls = append(one.ToolCalls, newChatCall(b.ID, b.Name, arguments))
		case "tool_result":
			said, err := blocksOf("messages", b.Content)
			if err != nil {
				return nil, err
			}
			var texts []string
			var images []chatPart
			for j := range said {
				switch said[j].Type {
				case "text":
					texts = append(texts, said[j].Text)
				case "image":
					images = append(images, imagePart(said[j].image()))
				}
			}
			all = append(all, chatMessage{Role: "tool", ToolCallID: b.ToolUseID, Content: strings.Join(texts, "\n")})
			if images != nil {
				all = append(all, chatMessage{Role: "user", Content: images})
			}
		case "redacted_thinking", "tool_reference":
		default:
			return nil, infer.Invalid("messages", "messages: a block is of type %q, which is not known", b.Type)
		}
	}
	switch {
	case len(parts) == 1 && parts[0].Type == "text":
		one.Content = parts[0].Text
	case len(parts) > 0:
		one.Content = parts
	case role == "user":
		return all, nil
	}
	return append(all, one), nil
}

// completion makes a chat of the request.
func (r *messagesRequest) completion() (req *completion.Request, err error) {
	req = &completion.Request{Model: r.Model, MaxTokens: r.MaxTokens, Stream: r.Stream, KVTransferParams: r.KVTransferParams, Salt: r.Salt, Distribution: r.Distribution}
	req.TemplateKwargs = r.TemplateKwargs
	if req.Messages, err = r.chat(); err != nil {
		return nil, err
	}
	if len(r.StopSequences) > 0 {
		if req.Stop, err = chatJSON("stop_sequences", r.StopSequences); err != nil {
			return nil, err
		}
	}
	var tools []chatTool
	for i, t := range r.Tools {
		if t.Name == "" || t.Schema.Kind() != '{' {
			return nil, infer.Invalid("tools", "tools[%d]: name and input_schema are needed", i)
		}
		tools = append(tools, chatTool{"function", chatFunction{t.Name, t.Description, t.Schema, t.Strict}})
	}
	if tools != nil {
		if req.Tools, err = chatJSON("tools", tools); err != nil {
			return nil, err
		}
	}
	if c := r.ToolChoice; c != nil {
		req.ParallelToolCalls = c.DisableParallel != nil && !*c.DisableParallel
		switch c.Type {
		case "auto", "none":
			req.ToolChoice = jsontext.Value(`"` + c.Type + `"`)
		case "any":
			req.ToolChoice = jsontext.Value(`"required"`)
		case "tool":
			req.ToolChoice = jsontext.Value(`{"type":"function","function":{"name":` + web.Quote(c.Name) + `}}`)
		default:
			return nil, infer.Invalid("tool_choice", "tool_choice.type is %q; it must be auto, any, tool or none", c.Type)
		}
	}
	return req, r.modes(req)
}

// modes reads how the answer is thought about, and its form.
func (r *messagesRequest) modes(req *completion.Request) error {
	effort := func(word string) { req.ReasoningEffort = &word }
	if c := r.OutputConfig; c != nil {
		if c.Effort != "" {
			effort(map[string]string{"xhigh": "high", "max": "high"}[c.Effort])
			if *req.ReasoningEffort == "" {
				effort(c.Effort)
			}
		}
		if c.Format != nil && !fields.IsNull(c.Format.Schema) {
			req.ResponseFormat = jsontext.Value(`{"type":"json_schema","json_schema":{"name":"json_schema","schema":` + string(c.Format.Schema) + `}}`)
		}
	}
	if t := r.Thinking; t != nil {
		switch t.Type {
		case "disabled":
			effort("none")
		case "enabled":
			if t.Budget < 1024 {
				return infer.Invalid("thinking", "thinking.budget_tokens is %d; it must be at least 1024", t.Budget)
			}
			if r.MaxTokens != nil && t.Budget >= *r.MaxTokens {
				return infer.Invalid("thinking", "thinking.budget_tokens must be less than max_tokens")
			}
			if req.ReasoningEffort == nil {
				effort("medium")
			}
		case "adaptive":
		default:
			return infer.Invalid("thinking", "thinking.type is %q; it must be enabled, disabled or adaptive", t.Type)
		}
	}
	return nil
}

// acceptMessages reads a request to /v1/messages.
func acceptMessages(a *completion.Answer, body []byte) (*completion.Request, completion.API, error) {
	var r messagesRequest
	if err := web.Decode(body, &r); err != nil {
		return nil, nil, err
	}
	switch {
	case r.Model == "":
		return nil, nil, infer.Invalid("model", "model is missing")
	case r.MaxTokens == nil:
		return nil, nil, infer.Invalid("max_tokens", "max_tokens is missing")
	}
	if err := messagesLacks.Refuse(r.Rest); err != nil {
		return nil, nil, err
	}
	req, err := r.completion()
	return req, &messagesAnswer{Answer: a, block: -1}, err
}

// countTokens serves /v1/messages/count_tokens.
func (f *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	var req messagesRequest
	n, err := func() (int, error) {
		if err := web.ReadJSON(w, r, &req); err != nil {
			return 0, err
		}
		chat, err := req.completion()
		if err != nil {
			return 0, err
		}
		if _, err := catalog.LoRA(f.run.Options(), req.Model); err != nil {
			return 0, err
		}
		ids, err := f.vocab.Chat(r.Context(), "", chat.Messages, chat.Offered(), chat.TemplateKwargs)
		if err != nil {
			return 0, err
		}
		return len(ids), nil
	}()
	if err != nil {
		writeMessagesError(w, err)
		return
	}
	web.WriteJSON(w, http.StatusOK, map[string]any{"input_tokens": n, "context_management": map[string]int{"original_input_tokens": n}})
}

// writeMessagesError answers in Anthropic's shape of an error, with vLLM's names.
func writeMessagesError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	status, kind := web.StatusOf(e.Code)
	web.RetryAfter(w, e.Code)
	web.WriteJSON(w, status, messagesError(kind, e.Message))
}

func messagesError(kind, message string) any {
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return struct {
		Type  string `json:"type"`
		Error inner  `json:"error"`
	}{"error", inner{kind, message}}
}

// messagesAnswer is an answer in Anthropic's Messages API.
type messagesAnswer struct {
	*completion.Answer
	block   int             // that is open; -1: none was
	kind    speech.Kind     // of the open block
	begun   bool            // and has not ended
	pending string          // text that came while a call was open
	said    strings.Builder // arguments of the latest call
	used    bool            // there was a call
}

// messagesUsage is Anthropic's usage, which does not count cached tokens as input.
type messagesUsage struct {
	Input  int  `json:"input_tokens"`
	Output int  `json:"output_tokens"`
	Read   *int `json:"cache_read_input_tokens,omitempty"`
}

func newMessagesUsage(prompt, completion, cached int) messagesUsage {
	u := messagesUsage{Input: prompt, Output: completion}
	if cached >= 0 {
		u.Input, u.Read = max(0, prompt-cached), &cached
	}
	return u
}

// messagesBody is a message, as far as its fields are set.
type messagesBody struct {
	ID       string         `json:"id"`
	Type     string         `json:"type"`
	Role     string         `json:"role"`
	Content  []any          `json:"content"`
	Model    string         `json:"model"`
	Reason   *string        `json:"stop_reason"`
	Sequence jsontext.Value `json:"stop_sequence,omitempty"`
	Usage    messagesUsage  `json:"usage"`
	Params   jsontext.Value `json:"kv_transfer_params,omitempty"`
}

func (m *messagesAnswer) body() messagesBody {
	return messagesBody{ID: m.ChatID(), Type: "message", Role: "assistant", Content: []any{}, Model: m.Model}
}

// stopped returns the reason of an output's end, and the stop string, or nil.
func (m *messagesAnswer) stopped(o *exchange.Output, complete bool) (reason string, sequence *string) {
	switch {
	case o.Reason == infer.ReasonLength:
		return "max_tokens", nil
	case complete:
		return "tool_use", nil
	case o.Matched.Set && o.Matched.Text != "":
		return "stop_sequence", &o.Matched.Text
	case m.used:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// Event implements exchange.Form.
func (m *messagesAnswer) Event(b []byte, o *exchange.Output) []byte {
	if o.Failure != nil {
		m.Failed = true
		return sendEvent(b, "error", messagesError("internal_error", infer.AsError(o.Failure).Message))
	}
	if !o.Began {
		body := m.body()
		body.Usage, body.Sequence = newMessagesUsage(len(o.Prompt), 0, -1), jsontext.Value("null")
		b = sendEvent(b, "message_start", struct {
			Type    string       `json:"type"`
			Message messagesBody `json:"message"`
		}{"message_start", body})
	}
	for _, p := range m.Parts(o) {
		b = m.part(b, &p)
	}
	o.Clear()
	return b
}

// messagesEvent is an event about a block.
type messagesEvent struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
	Block any    `json:"content_block,omitempty"`
	Delta any    `json:"delta,omitempty"`
}

// text, thinking and partial are the deltas of blocks; signature ends a block of thinking.
func textDelta(s string) any {
	return struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{"text_delta", s}
}

func thinkingDelta(s string) any {
	return struct {
		Type     string `json:"type"`
		Thinking string `json:"thinking"`
	}{"thinking_delta", s}
}

func signatureDelta() any {
	return struct {
		Type      string `json:"type"`
		Signature string `json:"signature"`
	}{"signature_delta", rand.Text()}
}

func inputDelta(s string) any {
	return struct {
		Type    string `json:"type"`
		Partial string `json:"partial_json"`
	}{"input_json_delta", s}
}

// part appends the events of a part.
func (m *messagesAnswer) part(b []byte, p *speech.Part) []byte {
	switch {
	case p.Kind == speech.Text && m.begun && m.kind == speech.CallBegins:
		m.pending += p.Text // it is told when the call is over
		return b
	case p.Kind == speech.CallBegins:
		b = m.start(b, speech.CallBegins, struct {
			Type  string         `json:"type"`
			ID    string         `json:"id"`
			Name  string         `json:"name"`
			Input jsontext.Value `json:"input"`
		}{"tool_use", m.CallID(), p.Text, jsontext.Value("{}")})
		m.used = true
		m.said.Reset()
		return b
	case p.Kind == speech.Arguments:
		m.said.WriteString(p.Text)
		return m.delta(b, inputDelta(p.Text))
	case p.Kind == speech.Reasoning:
		if !m.begun || m.kind != speech.Reasoning {
			b = m.start(b, speech.Reasoning, struct {
				Type     string `json:"type"`
				Thinking string `json:"thinking"`
			}{"thinking", ""})
		}
		return m.delta(b, thinkingDelta(p.Text))
	}
	if !m.begun || m.kind != speech.Text {
		b = m.startText(b)
	}
	return m.delta(b, textDelta(p.Text))
}

func (m *messagesAnswer) startText(b []byte) []byte {
	return m.start(b, speech.Text, struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{"text", ""})
}

func (m *messagesAnswer) start(b []byte, kind speech.Kind, block any) []byte {
	b = m.close(b)
	m.block++
	m.begun, m.kind = true, kind
	return sendEvent(b, "content_block_start", messagesEvent{Type: "content_block_start", Index: m.block, Block: block})
}

func (m *messagesAnswer) delta(b []byte, delta any) []byte {
	return sendEvent(b, "content_block_delta", messagesEvent{Type: "content_block_delta", Index: max(0, m.block), Delta: delta})
}

// close ends the open block, and writes the text that waited for that.
func (m *messagesAnswer) close(b []byte) []byte {
	if m.begun {
		if m.kind == speech.Reasoning {
			b = m.delta(b, signatureDelta())
		}
		b = sendEvent(b, "content_block_stop", messagesEvent{Type: "content_block_stop", Index: m.block})
		m.begun = false
	}
	if text := m.pending; text != "" {
		m.pending = ""
		b = m.close(m.delta(m.startText(b), textDelta(text)))
	}
	return b
}

// Stray implements exchange.Form.
func (m *messagesAnswer) Stray(b []byte) []byte {
	return sendEvent(b, "content_block_delta", messagesEvent{Type: "content_block_delta", Index: completion.StrayChoice, Delta: textDelta("x")})
}

// End implements exchange.Form.
func (m *messagesAnswer) End(b []byte) []byte {
	if m.Failed {
		return b
	}
	b = m.close(b)
	o := &m.Outputs[0]
	type delta struct {
		Reason   string  `json:"stop_reason"`
		Sequence *string `json:"stop_sequence"`
	}
	var d delta
	d.Reason, d.Sequence = m.stopped(o, m.used && jsontext.Value(m.said.String()).IsValid())
	b = sendEvent(b, "message_delta", struct {
		Type  string        `json:"type"`
		Delta delta         `json:"delta"`
		Usage messagesUsage `json:"usage"`
	}{"message_delta", d, newMessagesUsage(m.PromptTokens, m.Completion(), m.Cached())})
	return sendEvent(b, "message_stop", struct {
		Type string `json:"type"`
	}{"message_stop"})
}

// WholeBody implements completion.API.
func (m *messagesAnswer) WholeBody() []byte {
	o := &m.Outputs[0]
	said := m.Spoken(o)
	body := m.body()
	type block struct {
		Type      string         `json:"type"`
		Text      *string        `json:"text,omitempty"`
		ID        string         `json:"id,omitempty"`
		Name      string         `json:"name,omitempty"`
		Input     jsontext.Value `json:"input,omitempty"`
		Thinking  string         `json:"thinking,omitempty"`
		Signature string         `json:"signature,omitempty"`
	}
	if said.Reasoning != "" {
		body.Content = append(body.Content, block{Type: "thinking", Thinking: said.Reasoning, Signature: rand.Text()})
	}
	if said.Text != "" || said.Reasoning == "" && len(said.Calls) == 0 {
		body.Content = append(body.Content, block{Type: "text", Text: &said.Text})
	}
	for _, c := range said.Calls {
		body.Content = append(body.Content, block{Type: "tool_use", ID: m.CallID(), Name: c.Name, Input: jsontext.Value(c.Arguments)})
	}
	m.used = len(said.Calls) > 0
	reason, sequence := m.stopped(o, m.used)
	if body.Reason = &reason; sequence != nil {
		body.Sequence = jsontext.Value(web.Quote(*sequence))
	}
	body.Usage = newMessagesUsage(m.PromptTokens, m.Completion(), m.Cached())
	if o.Pair != nil && o.Pair.Kept != nil {
		body.Params = m.AppendTransferParams(nil, o)
	}
	return marshal(body)
}
