package relay

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/infer"
	"weir/internal/trace"
)

// By default an engine gets weir's key, and none of its callers' credentials; with
// PassKey it is the other way around, and then its refusals are the callers' too.
func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("weirs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := access.New(access.Options{KeyFile: file})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opts   Options
		fields http.Header // those that come, of these
	}{
		"none":      {Options{}, http.Header{}},
		"key":       {Options{Access: key}, http.Header{"Authorization": {"Bearer weirs"}}},
		"pass keys": {Options{PassKey: true}, http.Header{"Authorization": {"Bearer callers"}, "X-Api-Key": {"callers"}, "Api-Key": {"callers"}, "Cookie": {"a=b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, func(_ int, w *wire) {
				r, _ := w.request()
				for _, name := range credentials {
					if got, want := strings.Join(r.Header[name], "|"), c.fields.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				if r.Header.Get("X-Other") != "kept" {
					t.Errorf("%v", r.Header)
				}
				w.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
			})
			e := p.engine(c.opts)
			header := http.Header{"Authorization": {"Bearer callers"}, "X-Api-Key": {"callers"}, "Api-Key": {"callers"}, "Cookie": {"a=b"}, "X-Other": {"kept"}}
			resp, err := e.Forward(bounded(t), &engine.RelayRequest{Method: "POST", Path: "/v1/x", Header: header}, &trace.Leg{})
			if len(header) != 5 {
				t.Errorf("the caller's fields were changed: %v", header)
			}
			if c.opts.PassKey {
				if err != nil || resp.Status != 401 {
					t.Fatalf("%v, %v", resp, err)
				}
				resp.Body.Close()
				return
			}
			if e := wantFault(t, err, infer.CodeEngine); strings.Contains(e.Message, file) || !strings.Contains(e.Error(), c.opts.Access.Advice()) {
				t.Errorf("%v", e)
			}
		})
	}
}
