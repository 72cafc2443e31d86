//go:build linux

package loadengine

import "testing"

// A request is taken once it is whole, and no byte of the next one with it.
func TestFirstRequest(t *testing.T) {
	const head = "POST /v1/x HTTP/1.1\r\nContent-LENGTH: 5\r\n\r\n"
	for in, want := range map[string]struct {
		body string
		ok   bool
	}{
		head + "12345": {"12345", true}, head + "12345GET / HTTP/1.1\r\n": {"12345", true}, head + "1234": {}, head[:20]: {}, "": {},
		"GET / HTTP/1.1\r\n\r\nmore": {"", true},
	} {
		head, body, ok := firstRequest([]byte(in))
		if ok != want.ok || string(body) != want.body || ok && string(head[len(head)-4:]) != "\r\n\r\n" {
			t.Errorf("%q: %q, %q, %v", in, head, body, ok)
		}
	}
	if n := member([]byte(`{"seed": 17,`), `"seed":`); n != 17 {
		t.Errorf("seed %d", n)
	}
}
