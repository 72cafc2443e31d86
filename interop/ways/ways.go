// Package ways asks an engine, and weir before it, for the same, and compares what a client
// sees of the answers.
package ways

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Fields are a request's, without its model.
type Fields map[string]any

// With returns the fields and more of them.
func (f Fields) With(more Fields) Fields {
	all := maps.Clone(f)
	if all == nil {
		all = Fields{}
	}
	maps.Copy(all, more)
	return all
}

// Way is one way to a model.
type Way struct {
	Name, URL, Model string
}

// Post sends a request for the way's model.
func (w Way) Post(ctx context.Context, path string, body Fields) (*http.Response, error) {
	if w.Model != "" {
		body = body.With(Fields{"model": w.Model})
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// Shown is what a client sees of an answer: for each path of fields the values of all
// events. A field that is there in one of two streams alone shows, and how many events the
// engine made of its tokens does not.
type Shown map[string][]any

// ofTheRequest are members whose value is another one for each request or process.
var ofTheRequest = map[string]bool{".id": true, ".system_fingerprint": true, ".created": true}

func (s Shown) take(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		s[path+"{}"] = []any{true}
		for k, v := range v {
			s.take(path+"."+k, v)
		}
	case []any:
		for _, v := range v {
			s.take(path+"[]", v)
		}
	case nil:
		s[path+"=null"] = []any{true}
	case string:
		switch {
		case ofTheRequest[path]:
			s[path] = []any{true}
		case strings.HasSuffix(path, "content"), strings.HasSuffix(path, ".text"), strings.HasSuffix(path, "reasoning"), strings.HasSuffix(path, ".arguments"):
			if len(s[path]) == 0 {
				s[path] = []any{""}
			}
			s[path][0] = s[path][0].(string) + v
		case path == ".object" || path == ".model" || strings.HasSuffix(path, ".role"):
			s[path] = []any{v}
		default:
			s[path] = append(s[path], v)
		}
	default:
		switch {
		case ofTheRequest[path]:
			s[path] = []any{true}
		case strings.HasSuffix(path, ".index"), strings.HasSuffix(path, "_tokens"): // counts so far
			s[path] = []any{v}
		default:
			s[path] = append(s[path], v)
		}
	}
}

// Ask sends a request and returns what the client sees, streamed or whole.
func (w Way) Ask(ctx context.Context, path string, body Fields) (Shown, error) {
	resp, err := w.Post(ctx, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	s := Shown{"status": {resp.StatusCode}, "type": {kind}}
	if kind != "text/event-stream" {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		return s, s.json(b)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok && lines.Text() != "":
			s["line"] = append(s["line"], lines.Text())
		case !ok:
		case data == "[DONE]":
			s["done"] = append(s["done"], true)
		default:
			if err := s.json([]byte(data)); err != nil {
				return nil, err
			}
		}
	}
	return s, lines.Err()
}

func (s Shown) json(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("%q: %w", b, err)
	}
	s.take("", v)
	return nil
}

// Only keeps the paths that are named, and those below them.
func (s Shown) Only(paths ...string) Shown {
	kept := Shown{}
	for path, values := range s {
		for _, p := range paths {
			if path == p || strings.HasPrefix(path, p+".") || strings.HasPrefix(path, p+"[") {
				kept[path] = values
			}
		}
	}
	return kept
}

// Must asks, and ends the test where there is no answer.
func (w Way) Must(t *testing.T, path string, body Fields) Shown {
	t.Helper()
	s, err := w.Ask(harness.Context(t), path, body)
	if err != nil {
		t.Fatalf("%s%s: %v", w.Name, path, err)
	}
	return s
}
