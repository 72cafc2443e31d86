//go:build linux

package hostile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// framed is a connection of HTTP/2, and what came back on it.
type framed struct {
	net.Conn
	out  bytes.Buffer
	f    *http2.Framer // writes to out
	last uint32        // the latest stream

	mu       sync.Mutex
	statuses map[uint32]string // by stream: a status, or reset
	ended    chan struct{}     // closed at the connection's end
	away     chan struct{}     // closed by a GOAWAY
}

// dialFramed opens a connection, sends the preface and reads all that comes.
func dialFramed(c *carrier) (*framed, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	f := &framed{Conn: conn, statuses: map[uint32]string{}, ended: make(chan struct{}), away: make(chan struct{})}
	f.f = http2.NewFramer(&f.out, conn)
	f.f.AllowIllegalWrites = true
	f.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.out.WriteString(http2.ClientPreface)
	go f.read()
	return f, nil
}

func (f *framed) read() {
	defer close(f.ended)
	away := sync.OnceFunc(func() { close(f.away) })
	for {
		frame, err := f.f.ReadFrame()
		if err != nil {
			return
		}
		f.mu.Lock()
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			f.statuses[frame.StreamID] = frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			if f.statuses[frame.StreamID] == "" {
				f.statuses[frame.StreamID] = "reset"
			}
		case *http2.GoAwayFrame:
			away()
		}
		f.mu.Unlock()
	}
}

// status is what has come of a stream.
func (f *framed) status(stream uint32) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.statuses[stream]
}

// over reports whether the connection has ended, or a GOAWAY has come.
func (f *framed) over() bool {
	select {
	case <-f.away:
	case <-f.ended:
	default:
		return false
	}
	return true
}

// until waits for something for at most a time.
func until(most time.Duration, holds func() bool) bool {
	for began := time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > most {
			return false
		}
	}
	return true
}

// frames appends the frames of one step of a script:
//
//	headers STREAM FLAGS NAME=VALUE...   e ends the stream, h the header block
//	continuation STREAM FLAGS            empty
//	data STREAM FLAGS TEXT
//	reset STREAM | window STREAM N | setting ID VALUE | settings | ping | priority STREAM
//	raw TYPE FLAGS STREAM TEXT
//
// STREAM is a number, + for a new one, or . for the latest one. TEXT and VALUE are those of expand.
func (f *framed) frames(step string, vars map[string]string, rng *rand.Rand) {
	words := strings.Fields(step)
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	text := func(i int) string { return grammar(nil).expand(rng, word(i), vars) }
	number := func(i int) uint32 { n, _ := strconv.ParseUint(word(i), 0, 32); return uint32(n) }
	stream := func(i int) uint32 {
		switch word(i) {
		case "+":
			if f.last == 0 {
				f.last = 1
			} else {
				f.last += 2
			}
			return f.last
		case ".":
			return f.last
		}
		return number(i)
	}
	has := func(i int, flag string) bool { return strings.Contains(word(i), flag) }
	switch word(0) {
	case "headers":
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		e.SetMaxDynamicTableSize(0)
		for i := range words[3:] {
			name, value, _ := strings.Cut(text(i+3), "=")
			_ = e.WriteField(hpack.HeaderField{Name: name, Value: strings.ReplaceAll(value, "+", " ")})
		}
		rest := block.Bytes()
		first := rest[:min(len(rest), 16000)]
		rest = rest[len(first):]
		_ = f.f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream(1), BlockFragment: first, EndStream: has(2, "e"), EndHeaders: has(2, "h") && len(rest) == 0})
		for len(rest) > 0 {
			n := min(len(rest), 16000)
			_ = f.f.WriteContinuation(f.last, has(2, "h") && n == len(rest), rest[:n])
			rest = rest[n:]
		}
	case "continuation":
		_ = f.f.WriteContinuation(stream(1), has(2, "h"), nil)
	case "data":
		_ = f.f.WriteData(stream(1), has(2, "e"), []byte(text(3)))
	case "reset":
		_ = f.f.WriteRSTStream(stream(1), http2.ErrCodeCancel)
	case "window":
		_ = f.f.WriteWindowUpdate(stream(1), number(2))
	case "setting":
		_ = f.f.WriteSettings(http2.Setting{ID: http2.SettingID(number(1)), Val: number(2)})
	case "settings":
		_ = f.f.WriteSettings()
	case "ping":
		_ = f.f.WritePing(false, [8]byte{})
	case "priority":
		_ = f.f.WritePriority(stream(1), http2.PriorityParam{Weight: 1})
	case "raw":
		_ = f.f.WriteRawFrame(http2.FrameType(number(1)), http2.Flags(number(2)), stream(3), []byte(text(4)))
	default:
		panic(step)
	}
}

// play sends a script, whose steps may begin with a number of times and x, until the gateway has had
// enough.
func (f *framed) play(script []string, vars map[string]string, rng *rand.Rand) {
	for _, step := range script {
		n := 1
		if times, rest, ok := strings.Cut(step, " x "); ok {
			if k, err := strconv.Atoi(times); err == nil {
				n, step = k, rest
			}
		}
		for i := range n {
			for one := range strings.SplitSeq(step, "; ") {
				f.frames(one, vars, rng)
			}
			if f.out.Len() > 64<<10 || i == n-1 {
				_ = f.SetWriteDeadline(time.Now().Add(8 * time.Second))
				if _, err := f.out.WriteTo(f); err != nil || f.over() {
					return
				}
			}
		}
	}
}

func testHTTP2(t *testing.T) {
	all, beds := newCarriers(t, true)
	h2c, secure := all[0], all[2]
	stop := victims(t, all)
	scripts := rows(t, "http2.txt")
	var flood sync.Mutex // floods take a core each
	beside(8, scripts, func(r row) {
		if r.want["over"] == "flood" {
			flood.Lock()
			defer flood.Unlock()
		}
		for i, c := range []*carrier{secure, h2c} {
			if i == 1 && r.want["over"] == "flood" {
				continue
			}
			vars, _ := variables(nil)
			f, err := dialFramed(c)
			if err != nil {
				t.Errorf("%s: %v", r.title, err)
				return
			}
			f.play(r.texts, vars, random(r.title))
			if _, ok := r.want["over"]; ok && !until(8*time.Second, f.over) {
				t.Errorf("%s over %s: neither GOAWAY nor the connection's end", r.title, c.name)
			}
			for stream, want := range r.want {
				n, err := strconv.Atoi(stream)
				if err != nil {
					continue
				}
				got := ""
				until(20*time.Second, func() bool { got = f.status(uint32(n)); return got != "" || f.over() })
				if s, _ := strconv.Atoi(got); got != want && !status(want, s) && (got != "" || want != "reset") {
					t.Errorf("%s over %s: stream %d came to %q, want %s", r.title, c.name, n, got, want)
				}
			}
			f.Close()
		}
	})
	// The grammar: frames of no sense, behind a beginning that has some.
	rng, n := random("frames"), 0
	for ; n < 60 || time.Since(start) < *duration-settleTime; n++ {
		vars, _ := variables(nil)
		c := []*carrier{secure, h2c}[n%2]
		f, err := dialFramed(c)
		if err != nil {
			t.Error(err)
			break
		}
		f.play([]string{"settings"}, vars, rng)
		for range 1 + rng.IntN(12) {
			f.frames(randomStep(rng, scripts), vars, rng)
		}
		b := f.out.Bytes()
		for range rng.IntN(3) { // and bytes that are wrong
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		if rng.IntN(3) == 0 {
			b = b[:rng.IntN(len(b))]
		}
		_ = send(f, string(b), rng)
		until(time.Duration(rng.IntN(100))*time.Millisecond, f.over)
		end(f.Conn, rng.IntN(len(endings)))
	}
	stop()
	t.Logf("%d connections of random frames", n)
	for _, b := range beds {
		b.settled("frames", 250)
	}
}

// randomStep draws a step of the rows, once.
func randomStep(rng *rand.Rand, scripts []row) string {
	r := scripts[rng.IntN(len(scripts))]
	step := r.texts[rng.IntN(len(r.texts))]
	if _, rest, ok := strings.Cut(step, " x "); ok {
		step = rest
	}
	if rng.IntN(3) == 0 {
		step = fmt.Sprintf("raw %d %d %d %s", rng.IntN(12), rng.IntN(256), rng.IntN(8), strings.Repeat("x", rng.IntN(40)))
	}
	return step
}
