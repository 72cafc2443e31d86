package relay

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/test/e2e/harness"
)

// recorder is an engine that answers everything and keeps what it was asked.
type recorder struct {
	*httptest.Server
	mu   sync.Mutex
	took []string // path, X-Request-Id and body of each request
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if req.Method == http.MethodGet {
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.took = append(r.took, req.URL.RequestURI()+" "+req.Header.Get("X-Request-Id")+" "+string(body))
		r.mu.Unlock()
		io.WriteString(w, `{"id":"`+req.Header.Get("X-Request-Id")+`"}`)
	}))
	t.Cleanup(r.Close)
	return r
}

// taken returns what the engine was asked since the last call.
func (r *recorder) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := r.took
	r.took = nil
	return took
}

// A client steers no relayed engine, reaches nothing through it and manages it in no
// way, unless the operator says so; what passes, passes byte for byte.
func TestAllow(t *testing.T) {
	harness.Beside(t, harness.Light)
	engine := newRecorder(t)
	strict := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL)
	const image = `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1:1/a"}}]}]}`
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/v1/completions", `{"model":"m","prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":1,"tp_size":1}}`, 400, "--allow-field kv_transfer_params"},
		{"/v1/completions", `{"model":"m","prompt":"a","kv_transfer_param\u0073":{}}`, 400, "--allow-field kv_transfer_params"},
		{"/v1/chat/completions", `{"model":"m","messages":[],"priority":null,"priority":9}`, 400, "--allow-field priority"},
		{"/v1/messages", `{"model":"m","messages":[],"max_tokens":1,"cache_salt":"a"}`, 400, "cache_salt is not taken from clients"},
		{"/v1/responses", `{"model":"m","input":"a","bootstrap_host":"127.0.0.1"}`, 400, "bootstrap_host"},
		{"/v1/embeddings", `{"model":"m","input":"a","rid":"theirs"}`, 400, "--allow-field rid"},
		{"/v1/chat/completions", image, 400, "messages[0].content[0].image_url.url is a reference"},
		{"/v1/load_lora_adapter", `{"model":"m","lora_name":"a","lora_path":"/"}`, 404, "--relay-path"},
		{"/v1/%2e%2e/server_info?x", `{"model":"m"}`, 400, "write the path plainly"},
		{"/v1/..%2f..%2fabort_request", `{"model":"m"}`, 400, "write the path plainly"},
		{"/v1/chat/completions%00", `{"model":"m"}`, 400, "write the path plainly"},
	} {
		a := harness.Post(t, strict.URL+c.path, c.body)
		if a.Status != c.status || !strings.Contains(string(a.Body), c.says) {
			t.Errorf("%s %s: %d %s", c.path, c.body, a.Status, a.Body)
		}
	}
	if a := harness.Post(t, strict.URL+"/v1/completions", `{"model":"m","prompt":"a"}`, "X-data-parallel-rank", "1"); a.Status != 400 || !strings.Contains(string(a.Body), "--allow-field X-Data-Parallel-Rank") {
		t.Errorf("a header: %d %s", a.Status, a.Body)
	}
	if took := engine.taken(); len(took) != 0 {
		t.Errorf("the engine was asked %q", took)
	}
	const plain = "{\"model\" : \"m\",\n\"messages\":[ {\"content\":\"\\u00e9 http://a.example\"}] ,\"kv_transfer_params\": null}"
	for range 2 { // the same id twice
		if a := harness.Post(t, strict.URL+"/v1/chat/completions", plain, "X-Request-Id", "mine"); a.Status != 200 || a.Header.Get("X-Request-Id") != "mine" || bytes.Contains(a.Body, []byte("mine")) {
			t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
		}
	}
	took := engine.taken()
	if len(took) != 2 || took[0] == took[1] || !strings.HasSuffix(took[0], " "+plain) || !strings.HasPrefix(took[0], "/v1/chat/completions req-") {
		t.Errorf("the engine was asked %q", took)
	}
	harness.Eventually(t, "two records of one id", func() bool {
		records := harness.Get(t, strict.Admin+"/timeline/mine")
		return bytes.Count(records.Body, []byte(`"request_id":"mine"`)) == 2
	})

	loose := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL, "--allow-field", "priority,x-data-parallel-rank", "--media", "data,http://127.0.0.1:1/", "--relay-path", "/v1/load_lora_adapter")
	for _, c := range [][2]string{
		{"/v1/completions", `{"model":"m","prompt":"a","priority":9}`}, {"/v1/chat/completions", image}, {"/v1/load_lora_adapter", `{"model":"m"}`},
	} {
		a := harness.Post(t, loose.URL+c[0], c[1], "X-Data-Parallel-Rank", "1")
		if took := engine.taken(); a.Status != 200 || len(took) != 1 || !strings.HasSuffix(took[0], " "+c[1]) {
			t.Errorf("%s: %d %s; the engine was asked %q", c[0], a.Status, a.Body, took)
		}
	}
	if a := harness.Post(t, loose.URL+"/v1/chat/completions", strings.Replace(image, "127.0.0.1:1/", "127.0.0.1:1@10.0.0.1/", 1)); a.Status != 400 {
		t.Errorf("another host: %d %s", a.Status, a.Body)
	}
}

// Caps of a model hold for engines of both kinds, also where its folder is elsewhere.
func TestCaps(t *testing.T) {
	harness.Beside(t, harness.Light)
	engine, s := newRecorder(t), harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL, "--engine", s.Spec("plane"), "--model", "m,max-tokens=9,max-n=1", "--model", "weir-sim,max-tokens=9,max-n=1")
	for _, model := range []string{"m", "weir-sim"} {
		for _, field := range []string{`"max_tokens":10`, `"n":2,"max_tokens":1`} {
			a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"a"}],`+field+`}`)
			if a.Status != 400 || !strings.Contains(string(a.Body), "for model "+model+" it may be at most") {
				t.Errorf("%s %s: %d %s", model, field, a.Status, a.Body)
			}
		}
	}
	if a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","ignore_eos":true,"messages":[{"role":"user","content":"a"}]}`); a.Status != 200 || !strings.Contains(string(a.Body), `"completion_tokens":9`) {
		t.Errorf("without a bound: %d %s", a.Status, a.Body)
	}
	if a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"m","messages":[]}`); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if took := engine.taken(); len(took) != 1 || !strings.HasSuffix(took[0], ` {"max_tokens":9,"model":"m","messages":[]}`) {
		t.Errorf("the engine was asked %q", took)
	}
}

// Each field of /v1/embeddings is treated as the manual says: one that is carried reaches the
// engine as it was written, one that steers engines is refused by its name.
func TestEmbeddingFields(t *testing.T) {
	harness.Beside(t, harness.Light)
	engine := newRecorder(t)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL)
	values := map[string]string{"model": `"m"`, "messages": `[{"role":"user","content":"a"}]`}
	refused := 0
	for _, f := range openai.EmbeddingFields() {
		value := values[f.Name]
		if value == "" {
			value = `[ "as\u0020it", {"came" :1}]`
		}
		body := `{"model":"m", "` + f.Name + `" : ` + value + `}`
		if f.Name == "model" {
			body = `{"model" : "m"}`
		}
		a := harness.Post(t, g.URL+"/v1/embeddings", body)
		took := engine.taken()
		if f.Treatment == dialect.Refused {
			if refused++; a.Status != 400 || len(took) != 0 || !strings.Contains(string(a.Body), "--allow-field "+f.Name) {
				t.Errorf("%s: %d %s, and the engine was asked %q", f.Name, a.Status, a.Body, took)
			}
			continue
		}
		if a.Status != 200 || len(took) != 1 || !strings.HasSuffix(took[0], " "+body) {
			t.Errorf("%s: %d %s, and the engine was asked %q, want %s", f.Name, a.Status, a.Body, took, body)
		}
	}
	if refused == 0 {
		t.Error("no field is refused")
	}
	g.Interrupt()
}
