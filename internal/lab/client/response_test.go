//go:build linux

package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const testHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-Encoding: chunked\r\n\r\n"

// body frames chunks.
func body(chunks ...string) string {
	var b strings.Builder
	for _, c := range chunks {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(c), c)
	}
	return b.String() + "0\r\n\r\n"
}

func readAll(pieces ...string) (events []string, r *response, err error) {
	r = new(response)
	for _, p := range pieces {
		if err = r.feed([]byte(p), func(e []byte) { events = append(events, string(e)) }); err != nil {
			break
		}
	}
	return events, r, err
}

// However chunks cut the events and reads cut the chunks, the events are the
// same.
func TestResponseCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.StringMatching(`data: [a-z \n]{0,30}[a-z]`)).Draw(t, "events")
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "\n\n", "\n")
			for strings.Contains(want[i], "\n\n") {
				want[i] = strings.ReplaceAll(want[i], "\n\n", "\n")
			}
		}
		text := ""
		for _, e := range want {
			text += e + "\n\n"
		}
		wire := testHead + body(split(t, text, "chunk")...)
		got, r, err := readAll(split(t, wire, "read")...)
		if err != nil || !r.complete() || !slices.Equal(got, want) {
			t.Fatalf("%q: %v, complete %t, want %q", got, err, r.complete(), want)
		}
	})
}

// split cuts a text into pieces that are not empty.
func split(t *rapid.T, text, label string) []string {
	var pieces []string
	for len(text) > 0 {
		n := rapid.IntRange(1, min(len(text), 50)).Draw(t, label)
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	return pieces
}

func TestResponseChunks(t *testing.T) {
	events, r, err := readAll(testHead + body("data: a\n\ndata: b\n\n", "data: c\n\n"))
	if err != nil || len(events) != 3 || r.chunks != 2 || r.status != 200 {
		t.Errorf("%q, %d chunks, status %d, %v", events, r.chunks, r.status, err)
	}
}

// A response that was whole when it began has a length.
func TestResponseOfALength(t *testing.T) {
	wire := "HTTP/1.1 200 OK\r\ncontent-length: 18\r\nDate: x\r\n\r\ndata: a\n\ndata: b\n\n"
	for cut := range wire {
		events, r, err := readAll(wire[:cut], wire[cut:])
		if err != nil || len(events) != 2 || r.chunks != 1 || !r.complete() {
			t.Errorf("cut at %d: %q, %d chunks, complete %t, %v", cut, events, r.chunks, r.complete(), err)
		}
		if _, r, err := readAll(wire[:cut]); err != nil || r.complete() {
			t.Fatalf("the first %d bytes: complete %t, %v", cut, r.complete(), err)
		}
	}
}

func TestResponseIncomplete(t *testing.T) {
	whole := testHead + body("data: a\n\n")
	for n := range len(whole) {
		if _, r, err := readAll(whole[:n]); err != nil || r.complete() {
			t.Fatalf("cut at %d: complete %t, %v", n, r.complete(), err)
		}
	}
}

func TestResponseRefused(t *testing.T) {
	for _, wire := range []string{
		"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", // no whole event
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\n\r\ndata: a\n\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\ndata: a\n\n",
		"HTTP/1.0 200 OK\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		testHead + "5x\r\n",
		testHead + "ffffffffff\r\n",
		testHead + "1\r\nab\r\n",
		testHead + body("data: half"),
		testHead + body("data: a\n\n") + "more",
		testHead + "0\r\nTrailer: x\r\n\r\n",
		strings.Repeat("x", maxHeld+1),
	} {
		if _, _, err := readAll(wire); err == nil {
			t.Errorf("%.60q was taken", wire)
		}
	}
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte(testHead+body("data: a\n\n", "data: [DONE]\n\n")), uint8(3))
	f.Add([]byte(testHead+"3\r\nd\n\n\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("HTTP/1.1 500 No\r\n\r\n"), uint8(7))
	f.Fuzz(func(t *testing.T, wire []byte, step uint8) {
		whole, r, err := readAll(string(wire))
		var pieces []string
		for i := 0; i < len(wire); i += int(step) + 1 {
			pieces = append(pieces, string(wire[i:min(len(wire), i+int(step)+1)]))
		}
		cut, rc, cerr := readAll(pieces...)
		if (err == nil) != (cerr == nil) {
			t.Fatalf("whole: %v, cut: %v", err, cerr)
		}
		if err == nil && (!slices.Equal(whole, cut) || r.complete() != rc.complete() || r.chunks != rc.chunks) {
			t.Fatalf("whole %q, cut %q", whole, cut)
		}
	})
}
