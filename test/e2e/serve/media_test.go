package serve

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	le "encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// tone returns a WAVE file of this many samples at 16 kHz.
func tone(samples int) []byte {
	le := le.LittleEndian
	b := append(le.AppendUint32([]byte("RIFF"), uint32(36+2*samples)), "WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"...)
	b = le.AppendUint32(le.AppendUint32(b, 16000), 32000)
	b = le.AppendUint32(append(b, "\x02\x00\x10\x00data"...), uint32(2*samples))
	return append(b, bytes.Repeat([]byte{1, 0}, samples)...)
}

func dataURL(kind string, b []byte) string {
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(b)
}

// seenMedia is what a simulated engine says that it looked at.
func seenMedia(t testing.TB, admin string) (all []struct {
	Kind, SHA256, URL string
	Type              string `json:"media_type"`
	Bytes, Tokens     int
}) {
	t.Helper()
	if err := json.Unmarshal(harness.Get(t, admin+"/admin/media").Body, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// mediaAnswer is what an answer in any dialect says: its text and its usage.
type mediaAnswer struct {
	text           string
	prompt, output int
}

// mediaAnswerOf reads an answer of any of the APIs, whole or streamed.
func mediaAnswerOf(t testing.TB, a harness.Answer) (m mediaAnswer) {
	t.Helper()
	if a.Status != http.StatusOK || a.Err != nil {
		t.Fatalf("status %d, %v: %s", a.Status, a.Err, a.Body)
	}
	type usage struct{ Prompt_tokens, Completion_tokens, Input_tokens, Output_tokens int }
	type part struct {
		Type, Text string
		Delta      json.RawMessage
		Content    []struct{ Text string }
		Message    struct{ Content string }
	}
	var docs []string
	if strings.HasPrefix(string(a.Body), "{") {
		docs = []string{string(a.Body)}
	}
	for line := range strings.Lines(string(a.Body)) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {"); ok {
			docs = append(docs, "{"+data)
		}
	}
	for _, doc := range docs {
		var e struct {
			Type    string
			Text    json.RawMessage // of /generate, all so far
			Delta   json.RawMessage
			Content []part
			Output  []part
			Choices []struct {
				Delta, Message struct{ Content string }
			}
			Usage    usage
			Response struct{ Usage usage }
			Message  struct{ Usage usage }
			Meta     struct{ Prompt_tokens, Completion_tokens int } `json:"meta_info"`
		}
		if err := json.Unmarshal([]byte(doc), &e); err != nil {
			t.Fatalf("%v: %s", err, doc)
		}
		var delta struct{ Text string }
		switch e.Type {
		case "content_block_delta":
			_ = json.Unmarshal(e.Delta, &delta)
		case "response.output_text.delta":
			_ = json.Unmarshal(e.Delta, &delta.Text)
		}
		m.text += delta.Text
		for _, c := range e.Choices {
			m.text += c.Delta.Content + c.Message.Content
		}
		for _, p := range e.Content {
			m.text += p.Text
		}
		for _, p := range e.Output {
			for _, c := range p.Content {
				m.text += c.Text
			}
		}
		if e.Meta.Prompt_tokens > 0 {
			_ = json.Unmarshal(e.Text, &m.text)
		}
		for _, u := range []usage{e.Usage, e.Response.Usage, e.Message.Usage, {e.Meta.Prompt_tokens, e.Meta.Completion_tokens, 0, 0}} {
			m.prompt, m.output = max(m.prompt, u.Prompt_tokens, u.Input_tokens), max(m.output, u.Completion_tokens, u.Output_tokens)
		}
	}
	return m
}

// Images and audio reach the engine byte for byte and in their order, over both
// wires and from every API, streamed and whole: the engine's answer is the one that
// it gives without a gateway, its count of the prompt is the answer's, and what it
// looked at is what was sent.
func TestMedia(t *testing.T) {
	t.Parallel()
	a, b, c := harness.Picture(t, 100, 57, 1, "png"), harness.Picture(t, 28, 28, 2, "jpeg"), tone(16000)
	sent := [][]byte{a, b, c}
	tokens := []int{4 * 3, 1, 25}

	text := func(kind, s string) string { return fmt.Sprintf(`{"type":%q,"text":%q}`, kind, s) }
	audio := func(kind string) string {
		return fmt.Sprintf(`{"type":%q,"input_audio":{"data":%q,"format":"wav"}}`, kind, base64.StdEncoding.EncodeToString(c))
	}
	chat := func(first, second []byte) string {
		return `{"model":"weir-sim","max_tokens":12,"ignore_eos":true,"stream":%v,"stream_options":%v,"messages":[{"role":"user","content":[` + strings.Join([]string{
			text("text", "one "), fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q,"detail":"high"}}`, dataURL("image/png", first)), text("text", " two "),
			fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, dataURL("image/jpeg", second)), audio("input_audio"), text("text", " end")}, ",") + `]}]}`
	}
	whole := func(body string) string { return fmt.Sprintf(body, false, "null") }

	for _, path := range []string{"plane", "sglang", "vllm"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := harness.StartSim(t, append(harness.FastSim, "--enable-scale-out")...)
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
			direct := mediaAnswerOf(t, harness.Post(t, s.OpenAI+"/v1/chat/completions", whole(chat(a, b))))
			text0 := mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","max_tokens":1,"messages":[{"role":"user","content":"one  two  end"}]}`))

			check := func(name string, got mediaAnswer) {
				t.Helper()
				if got != direct || got.output != 12 {
					t.Errorf("%s: %+v, and without a gateway %+v", name, got, direct)
				}
				all := seenMedia(t, s.Admin)
				if len(all) < len(sent) {
					t.Fatalf("%s: the engine looked at %+v", name, all)
				}
				var order []string
				for i, m := range all[len(all)-len(sent):] {
					sum := sha256.Sum256(sent[i])
					if m.SHA256 != hex.EncodeToString(sum[:]) || m.Bytes != len(sent[i]) || m.Tokens != tokens[i] {
						t.Errorf("%s: part %d arrived as %+v", name, i, m)
					}
					order = append(order, m.Kind)
				}
				if !slices.Equal(order, []string{"image", "image", "audio"}) {
					t.Errorf("%s: %v", name, order)
				}
			}
			check("chat", mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/chat/completions", whole(chat(a, b)))))
			check("chat, streamed", mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(chat(a, b), true, `{"include_usage":true}`))))
			if direct.prompt < text0.prompt+12+1+25 {
				t.Errorf("%d tokens of the prompt, %d of its text", direct.prompt, text0.prompt)
			}
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{"model":"weir-sim","max_output_tokens":12,"ignore_eos":true,"stream":%v,"input":[{"role":"user","content":[`, stream) + strings.Join([]string{
					text("input_text", "one "), fmt.Sprintf(`{"type":"input_image","detail":"auto","file_id":null,"image_url":%q}`, dataURL("image/png", a)), text("input_text", " two "),
					fmt.Sprintf(`{"type":"input_image","image_url":%q}`, dataURL("image/jpeg", b)), audio("input_audio"), text("input_text", " end")}, ",") + `]}]}`
				check("responses", mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/responses", body)))
			}

			// Other bytes, and the same in another order, are another prompt.
			other := bytes.Clone(a)
			copy(other[len(other)-4:], "\x00\x00\x00\x00") // of a checksum that nobody looks at
			for name, body := range map[string]string{"another byte": chat(other, b), "another order": strings.ReplaceAll(strings.ReplaceAll(chat(b, a), "image/jpeg", "image/*"), "image/png", "image/*")} {
				if got := mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/chat/completions", whole(strings.ReplaceAll(body, "image/*", "image/x-any")))); got.text == direct.text || got.prompt != direct.prompt {
					t.Errorf("%s: %+v, %+v", name, got, direct)
				}
			}

			// Anthropic's has images, and no audio; a tool's result may be one.
			source := func(kind string, b []byte) string {
				return fmt.Sprintf(`{"type":"image","source":{"type":"base64","media_type":%q,"data":%q}}`, kind, base64.StdEncoding.EncodeToString(b))
			}
			message := func(stream bool) string {
				return fmt.Sprintf(`{"model":"weir-sim","max_tokens":12,"stream":%v,"messages":[{"role":"user","content":[%s,%s]},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"look","input":{}}]},`+
					`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[%s,%s]}]}]}`, stream, text("text", "What?"), source("image/png", a), text("text", "seen:"), source("image/jpeg", b))
			}
			m := mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/messages", message(false)))
			if again := mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/messages", message(true))); again != m || m.text == "" {
				t.Errorf("messages: %+v, streamed %+v", m, again)
			}
			all := seenMedia(t, s.Admin)
			for i, want := range [][]byte{a, b} {
				if sum := sha256.Sum256(want); all[len(all)-2+i].SHA256 != hex.EncodeToString(sum[:]) {
					t.Errorf("messages: the engine looked at %+v", all[len(all)-2:])
				}
			}
			// Its stream says how long the prompt is before anything else.
			stream := harness.Post(t, g.URL+"/v1/messages", message(true))
			if start, _, _ := strings.Cut(string(stream.Body), "\n\n"); !strings.Contains(start, fmt.Sprintf(`"usage":{"input_tokens":%d,`, m.prompt)) {
				t.Errorf("%d tokens, and the stream begins with %s", m.prompt, start)
			}

			// SGLang's own API, at the gateway and at the engine.
			native := fmt.Sprintf(`{"input_ids":[32736,100,32766,200,32766,300,32767,400],"image_data":[%q,%q],"audio_data":%q,"sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`,
				dataURL("image/png", a), base64.StdEncoding.EncodeToString(b), dataURL("audio/wav", c))
			atEngine := harness.Post(t, s.SGLang+"/generate", native)
			want := mediaAnswerOf(t, atEngine)
			if got := mediaAnswerOf(t, harness.Post(t, g.URL+"/generate", native)); got != want || got.output != 12 || got.prompt != 5+12+1+25 {
				t.Errorf("/generate: %+v, at the engine %+v", got, want)
			}
			if !strings.Contains(string(atEngine.Body), `"image_tokens":13,"audio_tokens":25`) {
				t.Errorf("the engine's own answer: %s", atEngine.Body)
			}
			g.Balanced()
			g.Interrupt()
			s.Interrupt()
		})
	}
}

// Media that cannot be carried are refused by name, before anything is sent. An error in an image
// names its field.
func TestMediaRefused(t *testing.T) {
	s := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("sglang"), "--media", "any")
	img := harness.Picture(t, 10, 10, 1, "png")
	chat := func(part string) string {
		return `{"model":"weir-sim","max_tokens":2,"messages":[{"role":"user","content":[` + part + `]}]}`
	}
	url := func(u string) string { return chat(fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, u)) }
	const at = "messages[0].content[0]"
	for _, test := range []struct{ path, body, param, says string }{
		{"/v1/chat/completions", url("data:image/png;base64,iVBO"), "", "the engine refused the request"},
		{"/v1/chat/completions", url("data:image/png;base64,iVB"), at + ".image_url.url", "multiple of 4"},
		{"/v1/chat/completions", url("data:image/png,abc"), at + ".image_url.url", "data:TYPE;base64,DATA"},
		{"/v1/chat/completions", url(dataURL("audio/wav", img)), at + ".image_url.url", "want one of kind image"},
		{"/v1/chat/completions", url(dataURL("image/gif", img)), at + ".image_url.url", "set it to image/png"},
		{"/v1/chat/completions", url("file:///etc/passwd"), at + ".image_url.url", "http or https"},
		{"/v1/chat/completions", url("/etc/passwd"), at + ".image_url.url", "is not a URL"},
		{"/v1/chat/completions", url("http://192.0.2.1/a.png"), "", "loopback addresses only"},
		{"/v1/chat/completions", chat(`{"type":"file","file":{"file_id":"x"}}`), at + ".type", "not supported"},
		{"/v1/chat/completions", chat(`{"type":"text","text":"<|image_pad|>"},{"type":"image_url","image_url":{"url":"` + dataURL("image/png", img) + `"}}`), "messages", "2 placeholders"},
		{"/v1/messages", `{"model":"weir-sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}}]}]}`, at + ".type", "document"},
		{"/v1/messages/count_tokens", `{"model":"weir-sim","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/b"}}]}]}`, at + ".type", "the engine alone"},
		{"/v1/responses", `{"model":"weir-sim","input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}`, "input[0].content[0].file_id", "weir keeps no files"},
		{"/v1/responses", `{"model":"weir-sim","input":[{"role":"user","content":[{"type":"input_file","file_url":"http://a/b.pdf"}]}]}`, "input[0].content[0].type", "input_file"},
		{"/generate", `{"text":"no place","image_data":"` + dataURL("image/png", img) + `"}`, "", "0 placeholders for 1"},
	} {
		a := harness.Post(t, g.URL+test.path, test.body)
		if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), test.says) || test.path == "/v1/chat/completions" && test.param != "" && !strings.Contains(string(a.Body), `"param":"`+test.param+`"`) || !strings.Contains(string(a.Body), test.param) {
			t.Errorf("%s %.200s: status %d, %s", test.path, test.body, a.Status, a.Body)
		}
	}
	if n := seenMedia(t, s.Admin); len(n) != 0 {
		t.Errorf("the engine looked at %+v", n)
	}

	// A model without a placeholder for images takes none, and its server says so.
	folder := harness.SimFolder(t, func(_, text string) string {
		return strings.NewReplacer("image_token_id", "image", "audio_token_id", "audio").Replace(text)
	})
	blind := harness.StartSim(t, append([]string{"--model", "weir-sim=" + folder}, harness.FastSim...)...)
	for _, path := range []string{"plane", "sglang"} {
		g := harness.StartGateway(t, "serve", "--engine", blind.Spec(path))
		a := harness.Post(t, g.URL+"/v1/chat/completions", url(dataURL("image/png", img)))
		if a.Status != 400 || !strings.Contains(string(a.Body), "image input needs an engine that reads it itself") {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
		if st := harness.EngineState(t, blind.Admin); st.Received+st.Rejected != 0 {
			t.Errorf("%s: the engine was asked: %+v", path, st)
		}
		g.Interrupt()
	}
	// So does an engine process without a front end.
	c := harness.NewCores(t)
	harness.ShortTemp(t)
	free := harness.FreeAddress(t)
	v := harness.StartUnready(t, "serve", "--engine", "vllm-core=tcp://"+free+",model=weir-sim")
	core := c.Start(coretest.Options{Handshake: "tcp://" + free})
	defer core.Close()
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, v.Admin+"/readyz").Status == http.StatusOK })
	a := harness.Post(t, v.URL+"/v1/chat/completions", url(dataURL("image/png", img)))
	if a.Status != 400 || !strings.Contains(string(a.Body), `engine kind \"vllm-core\"`) || !strings.Contains(string(a.Body), "behind kind sglang, or behind kind openai") {
		t.Errorf("vllm-core: %d %s", a.Status, a.Body)
	}
}

// A reference is fetched by the engine and nobody else; an engine that fails before
// the first byte is left for another, and the image goes there too; an answer
// without a bound ends where the context does, the image counted.
func TestMediaElsewhere(t *testing.T) {
	t.Parallel()
	img := harness.Picture(t, 56, 56, 9, "png")
	fetched := make(chan string, 100)
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched <- r.UserAgent()
		_, _ = w.Write(img)
	}))
	defer files.Close()
	for _, path := range []string{"plane", "sglang"} {
		t.Run(path, func(t *testing.T) {
			bad, good := harness.StartSim(t, "--fault", "unavailable"), harness.StartSim(t, append([]string{"--context-length", "60"}, harness.FastSim...)...)
			g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", bad.Spec(path), "--engine", good.Spec(path), "--media", "any")
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
			for i, ref := range []string{dataURL("image/png", img), files.URL + "/a.png", dataURL("image/png", img), files.URL + "/b.png"} {
				a := mediaAnswerOf(t, harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"weir-sim","ignore_eos":true,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}}]}]}`, ref)))
				if a.prompt+a.output != 60 || a.prompt < 5 {
					t.Errorf("%d: %+v", i, a)
				}
			}
			all, sum := seenMedia(t, good.Admin), sha256.Sum256(img)
			for _, m := range all {
				if m.SHA256 != hex.EncodeToString(sum[:]) || m.Tokens != 4 {
					t.Errorf("%+v", m)
				}
			}
			if len(all) != 4 || all[1].URL != files.URL+"/a.png" || len(seenMedia(t, bad.Admin)) > 4 {
				t.Errorf("%+v", all)
			}
			if retries := harness.Metric(t, g.Admin, "weir_retries_total"); retries == 0 {
				t.Error("nothing went to the other engine")
			}
			g.Balanced()
			g.Interrupt()
		})
	}
	close(fetched)
	for agent := range fetched {
		if strings.Contains(agent, "weir") {
			t.Errorf("fetched by %q", agent)
		}
	}
}
