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
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

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
			// Members that have a number, such as choices, come in any order.
			number := ""
			if m, ok := v.(map[string]any); ok && m["index"] != nil {
				number = fmt.Sprint(m["index"])
			}
			s.take(path+"["+number+"]", v)
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

// numbered matches a number in a path.
var numbered = regexp.MustCompile(`\[\d+\]`)

// Only keeps the paths that are named, and those below them. A list's [] stands for each of
// its members.
func (s Shown) Only(paths ...string) Shown {
	kept := Shown{}
	for path, values := range s {
		plain := numbered.ReplaceAllString(path, "[]")
		for _, p := range paths {
			if plain == p || strings.HasPrefix(plain, p+".") || strings.HasPrefix(plain, p+"[") {
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

// Shape is a kind of request.
type Shape struct {
	Name string
	More Fields
	// Refused is the parameter that weir refuses by ids, and that the engine takes.
	Refused string
	// Dropped is the path of an API whose own server takes the parameter and ignores it.
	// weir does by ids what the parameter says.
	Dropped string
}

// forms are the ways in which an answer can be asked for.
var forms = []Fields{nil, {"stream": true}, {"stream": true, "stream_options": Fields{"include_usage": true}}}

// promised is what weir, where it makes the answer itself, has in common with the engine's
// own: what the API's clients read.
var promised = []string{"status", "type", "done", ".choices[].text", ".choices[].delta.content", ".choices[].message.content", ".choices[].finish_reason",
	".usage.prompt_tokens", ".usage.completion_tokens", ".error"}

// Same asks the engine itself, weir as a relay before it, and weir by ids, for each shape
// on top of the body of each path. A client of the relay sees all that the engine sends, and
// one of the other what is promised.
func Same(t *testing.T, engine, relay, ids Way, paths map[string]Fields, shapes []Shape) {
	t.Helper()
	for _, shape := range shapes {
		for path, base := range paths {
			for _, form := range forms {
				name := fmt.Sprintf("%s%s, %v", shape.Name, path, form)
				body := base.With(shape.More).With(form)
				want := engine.Must(t, path, body)
				if want["status"][0] != http.StatusOK {
					t.Fatalf("%s: the engine itself refuses it: %v", name, want)
				}
				if d := cmp.Diff(want, relay.Must(t, path, body)); d != "" {
					t.Errorf("%s: the engine and a relay: %s", name, d)
				}
				got := ids.Must(t, path, body)
				if path == shape.Dropped {
					if cmp.Equal(want.Only(promised...), got.Only(promised...)) {
						t.Errorf("%s: the engine does it now", name)
					}
					continue
				}
				if shape.Refused != "" {
					if got["status"][0] != http.StatusBadRequest || got[".error.param"][0] != shape.Refused {
						t.Errorf("%s: by ids: %v", name, got)
					}
				} else if d := cmp.Diff(want.Only(promised...), got.Only(promised...)); d != "" {
					t.Errorf("%s: the engine and by ids: %s", name, d)
				}
			}
		}
	}
}

// Conversations are the bodies of the two APIs that every engine has.
func Conversations() map[string]Fields {
	return map[string]Fields{
		"/v1/chat/completions": {"messages": []Fields{{"role": "user", "content": "Say it."}}, "max_tokens": 24},
		"/v1/completions":      {"prompt": "Say it.", "max_tokens": 24},
	}
}

// HangUp has clients of each gateway leave in the midst of so many streams of an engine that
// says a sentence over and over, and waits until the engine has counted them as aborted.
func HangUp(t *testing.T, streams int, engine *harness.Process, gateways ...*harness.Gateway) {
	t.Helper()
	ctx := harness.Context(t)
	var all sync.WaitGroup
	for _, g := range gateways {
		for range streams {
			all.Go(func() {
				if _, err := g.Complete(ctx, "weir-sim", endless, func(a *harness.Completion) bool { return len(a.Text) > 100 }); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	engine.Counts(func(n map[string]int) bool { return n["aborted"] == len(gateways)*streams })
}

// Die kills the engine's server in the midst of a stream of each gateway. A client must see that
// its stream failed.
func Die(t *testing.T, server *harness.Process, gateways ...*harness.Gateway) {
	t.Helper()
	ctx := harness.Context(t)
	var all, begun sync.WaitGroup
	for _, g := range gateways {
		begun.Add(1)
		here := sync.OnceFunc(begun.Done)
		all.Go(func() {
			defer here()
			a, err := g.Complete(ctx, "weir-sim", endless, func(*harness.Completion) bool { here(); return false })
			if err == nil && a.Failed == "" || a.Done {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	begun.Wait()
	server.Kill()
	all.Wait()
}

// endless is a limit that no test waits for.
const endless = `,"max_tokens":20000`
