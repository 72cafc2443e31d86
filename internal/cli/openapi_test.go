package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"

	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/internal/config"
	"weir/internal/config/keyfile"
)

const openAPI = "../../docs/admin.openapi.json"

// openAPIOf returns the operations that the document has, by method and path.
func openAPIOf(t *testing.T) (operations map[string]map[string]any, schemas *jsonschema.Compiler) {
	t.Helper()
	data, err := os.ReadFile(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]map[string]any
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	operations = map[string]map[string]any{}
	for path, methods := range doc.Paths {
		for method, operation := range methods {
			operations[strings.ToUpper(method)+" "+path] = operation
		}
	}
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	schemas = jsonschema.NewCompiler()
	if err := schemas.AddResource("admin.json", whole); err != nil {
		t.Fatal(err)
	}
	return operations, schemas
}

// The document has each call by which the fleet and limits change, and no other.
func TestOpenAPIHasTheCalls(t *testing.T) {
	operations, _ := openAPIOf(t)
	p := &process{changes: &changes{}}
	calls := p.changeRoutes()
	maps.Copy(calls, p.limitRoutes())
	has, routes := slices.Sorted(maps.Keys(operations)), slices.Sorted(maps.Keys(calls))
	if !slices.Equal(has, routes) {
		t.Errorf("docs/admin.openapi.json has\n%q, and the admin listener\n%q", has, routes)
	}
}

// The handlers answer as the document describes: the status is one of the operation's, and the body
// matches its schema. So do the bodies that they take.
func TestOpenAPIIsWhatTheHandlersDo(t *testing.T) {
	operations, schemas := openAPIOf(t)
	var all commands
	parser, err := kong.New(&all, kong.Name("weir"), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	keysFile := filepath.Join(t.TempDir(), "keys.yaml")
	_, hash := keyfile.NewKey()
	if err := os.WriteFile(keysFile, []byte("keys:\n  a: {hash: \""+hash.String()+"\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	specs := []string{"weir=127.0.0.1:1,name=a", "weir=127.0.0.1:2,name=b"}
	if _, err := parser.Parse([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--engine", specs[0], "--engine", specs[1], "--keys", keysFile}); err != nil {
		t.Fatal(err)
	}
	c := &all.Serve
	parts, problems := c.judge(false)
	if problems != nil {
		t.Fatal(problems)
	}
	want, _, err := parts.wishes.desired()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProcess(&c.gatewayFlags, parts.opts, []config.Engine{want.Engines[0].Engine, want.Engines[1].Engine}, parts.models, &streams{out: io.Discard, err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	p.changes.wishes, p.changes.desired = parts.wishes, want
	p.sources = &sources{again: func() (*serveCommand, settings, error) { return c, settings{}, nil }, look: resolver}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.fleet.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		p.api.listener.Close()
		p.admin.listener.Close()
		p.gateway.Close()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	handler := p.adminHandler(t.Context())
	seen := map[string]bool{}
	for _, call := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/admin/fleet", "", 200},
		{"GET", "/admin/pending", "", 200},
		{"GET", "/admin/engines/a", "", 200},
		{"GET", "/admin/engines/z", "", 404},
		{"PUT", "/admin/engines/c", `{"spec":"openai=http://127.0.0.1:3","weight":0.5,"drained":true}`, 200},
		{"PUT", "/admin/engines/c", `{"spec":"openai=http://127.0.0.1:3","weight":0.5,"drained":true}`, 200},
		{"PUT", "/admin/engines/d", `{"spec":"openai=http://127.0.0.1:3"}`, 409},
		{"PUT", "/admin/engines/d", `{"spec":""}`, 400},
		{"PUT", "/admin/engines/c/weight", `{"weight":0.25}`, 200},
		{"PUT", "/admin/engines/c/weight", `{"weight":2}`, 400},
		{"POST", "/admin/engines/c/resume", "", 200},
		{"POST", "/admin/engines/c/drain?timeout=1s", "", 200},
		{"POST", "/admin/engines/z/drain", "", 404},
		{"DELETE", "/admin/engines/c?force=true", "", 200},
		{"DELETE", "/admin/engines/c", "", 200},
		{"DELETE", "/admin/engines/z", "", 404},
		{"PUT", "/admin/models/m", `{"spec":"m,max-tokens=9"}`, 200},
		{"DELETE", "/admin/models/m", "", 200},
		{"DELETE", "/admin/models/z", "", 404},
		{"POST", "/admin/reload", "", 200},
		{"GET", "/admin/pending", "", 200},
		{"PATCH", "/admin/limits/a", `{"models":["x","y"],"band":"b","share":2.5,"max_requests":1,"requests_per_minute":2,"tokens_per_minute":3,"tokens_per_day":4,"max_prompt_tokens":5,"max_output_tokens":6}`, 200},
		{"GET", "/admin/limits/a", "", 200},
		{"GET", "/admin/limits", "", 200},
		{"GET", "/admin/limits?tenant=nobody", "", 200},
		{"GET", "/admin/limits/z", "", 404},
		{"PATCH", "/admin/limits/a", `{"models":null,"tokens_per_day":null}`, 200},
		{"PATCH", "/admin/limits/a", `{"tokens_per_day":0}`, 400},
		{"PATCH", "/admin/limits/a", `{"tokens_per_dya":1}`, 400},
		{"PATCH", "/admin/limits/a", `{}`, 400},
		{"PATCH", "/admin/limits/z", `{"share":2}`, 404},
	} {
		r := httptest.NewRequest(call.method, "http://127.0.0.1"+call.path, strings.NewReader(call.body))
		r.RemoteAddr = "127.0.0.1:4711"
		if call.body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != call.status {
			t.Errorf("%s %s: %d %s, want %d", call.method, call.path, w.Code, w.Body, call.status)
			continue
		}
		at, _ := url.Parse(call.path)
		template := at.Path
		for _, kind := range []string{"engines", "models", "limits"} {
			if parts := strings.Split(at.Path, "/"); len(parts) > 3 && parts[2] == kind {
				parts[3] = "{name}"
				template = strings.Join(parts, "/")
			}
		}
		key := call.method + " " + template
		seen[key] = true
		responses, _ := operations[key]["responses"].(map[string]any)
		of, ok := responses[strconv.Itoa(call.status)].(map[string]any)
		if !ok {
			t.Errorf("%s: the document has no %d", key, call.status)
			continue
		}
		ref := of["content"].(map[string]any)["application/json"].(map[string]any)["schema"].(map[string]any)["$ref"].(string)
		conforms(t, schemas, ref, w.Body.String(), key)
		if body, ok := operations[key]["requestBody"].(map[string]any); ok && call.status == 200 {
			ref := body["content"].(map[string]any)["application/json"].(map[string]any)["schema"].(map[string]any)["$ref"].(string)
			conforms(t, schemas, ref, call.body, key)
		}
	}
	for key := range operations {
		if !seen[key] {
			t.Errorf("%s was not called", key)
		}
	}
}

func conforms(t *testing.T, c *jsonschema.Compiler, ref, body, of string) {
	t.Helper()
	schema, err := c.Compile("admin.json" + ref)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%s: %v: %s", of, err, body)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s: %s: %v", of, body, err)
	}
}
