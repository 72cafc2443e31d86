package shared

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An outage is logged once after a second, and so is its end; an answer that is late is not.
func TestCondition(t *testing.T) {
	now := time.Now()
	c := condition{bound: 5 * time.Millisecond, state: Out, since: now}
	news := func(want string) {
		t.Helper()
		down, again := c.news(now)
		if got := fmt.Sprint(down, again); got != want {
			t.Errorf("%s: news %s, want %s", c.state, got, want)
		}
	}
	c.answered(time.Millisecond, now)
	news("false false")
	c.late(now)
	if c.state != Slow {
		t.Errorf("%s after a request has waited in vain", c.state)
	}
	now = now.Add(900 * time.Millisecond)
	news("false false")
	c.answered(4*time.Millisecond, now)
	news("false false")
	c.answered(6*time.Millisecond, now)
	since := now
	now = now.Add(time.Second)
	c.failed(errors.New("reset"), now)
	if c.state != Out || c.since != since || c.reason != "reset" {
		t.Errorf("%+v", c)
	}
	news("true false")
	now = now.Add(time.Hour)
	news("false false")
	c.late(now) // of a request that asked before
	if c.state != Out {
		t.Errorf("%s after a late answer", c.state)
	}
	c.answered(time.Millisecond, now)
	news("false true")
	news("false false")
}

func TestParseLocation(t *testing.T) {
	for text, want := range map[string]string{
		"redis://h":                      "{h:6379 false   0} redis://h:6379",
		"rediss://u:p%40s@[::1]:7/5":     "{[::1]:7 true u p@s 5} rediss://[::1]:7/5",
		"redis://:secret@h:1":            "{h:1 false  secret 0} redis://h:1",
		"http://h":                       "want redis://HOST:PORT, or rediss://HOST:PORT for TLS",
		"h:6379":                         "want redis://HOST:PORT, or rediss://HOST:PORT for TLS",
		"redis://":                       "it names no host; want redis://HOST:PORT",
		"redis://h:99999":                "its port 99999 is none from 1 to 65535",
		"redis://h/one":                  "its path /one is no number of a database; want /0 or another number",
		"redis://h/-1":                   "its path /-1 is no number of a database; want /0 or another number",
		"redis://h?db=1":                 "it has a query or a fragment, which mean nothing here; want redis://HOST:PORT/DATABASE",
		"redis://user@h":                 "it has a user without a password; want redis://USER:PASSWORD@HOST, or redis://:PASSWORD@HOST for the default user",
		"redis://:my secret\x01word@h:1": "it is no URL (net/url: invalid control character in URL); want redis://HOST:PORT",
	} {
		l, err := ParseLocation(text)
		got := fmt.Sprintf("{%s %v %s %s %d} %s", l.Address, l.TLS, l.User, l.Password, l.Database, l)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s\nwant %s", text, got, want)
		}
	}
}

// fake is a server that speaks Redis' protocol, and answers as a test says.
type fake struct {
	net.Listener
	tasks sync.WaitGroup
	// answer gives the reply to a command; "" hangs until the connection ends.
	answer func(args []string) string

	mu    sync.Mutex
	conns []net.Conn
}

func startFake(t *testing.T, answer func(args []string) string) *fake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Listener: l, answer: answer}
	f.tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			f.tasks.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		for _, c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		f.tasks.Wait()
	})
	return f
}

func (f *fake) serve(c net.Conn) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		args, err := command(r)
		if err != nil {
			return
		}
		reply := f.answer(args)
		if reply == "" {
			_, _ = io.Copy(io.Discard, r)
			return
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// command reads a command, an array of strings.
func command(r *bufio.Reader) (args []string, err error) {
	number := func(kind byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, errors.Join(err, errors.New("another kind"))
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	for range n {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		data := make([]byte, size+2)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		args = append(args, string(data[:size]))
	}
	return args, err
}

// grants answers a call of an account by granting all.
func grants(args []string) string {
	switch {
	case args[0] == "SCRIPT":
		return "+OK\r\n"
	case len(args) == 3+1+3: // enroll
		return ":2\r\n"
	}
	want, total := args[3+1+7], args[len(args)-1]
	return fmt.Sprintf("*10\r\n:%s\r\n:0\r\n:0\r\n:0\r\n:1000\r\n:1000\r\n:0\r\n:1\r\n:1\r\n:%s\r\n", want, total)
}

// begin starts a Store with one account at a server.
func begin(t *testing.T, f *fake, wait time.Duration) (*Store, *tenancy.Account, *bytes.Buffer) {
	l, err := ParseLocation("redis://" + f.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	s := New(Options{Location: l, Prefix: "x:", Wait: wait, Outage: tenancy.OutageRefuse, Log: slog.New(slog.NewTextHandler(log, nil))})
	a := tenancy.NewAccount(tenancy.Limits{RequestsPerMinute: 100}, time.Now())
	s.Restore("one", a, time.Now())
	s.Start()
	t.Cleanup(s.Close)
	return s, a, log
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %s within a minute", what)
		}
	}
}

// Requests are decided by the store, many in one exchange. A server that has forgotten the script
// is given it again, and no request notices.
func TestDecided(t *testing.T) {
	var forgets atomic.Bool
	s, a, _ := begin(t, startFake(t, func(args []string) string {
		if args[0] == "EVALSHA" && forgets.Load() {
			return "-NOSCRIPT No matching script.\r\n"
		}
		forgets.Store(false)
		return grants(args)
	}), 30*time.Second)
	for round := range 2 {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if r := a.Enter(time.Now()); r.Reason != "" {
					t.Errorf("round %d: %+v", round, r)
				}
			})
		}
		all.Wait()
		forgets.Store(true)
	}
	if n := s.Figures(); n.Decided != 200 || n.Alone != 0 || n.Exchanges > 200 || n.Gateways != 2 {
		t.Errorf("%+v", n)
	}
}

// A request waits for a server that hangs no longer than its bound, and the next ones not at all.
func TestHangs(t *testing.T) {
	var hangs atomic.Bool
	s, a, _ := begin(t, startFake(t, func(args []string) string {
		if hangs.Load() {
			return ""
		}
		return grants(args)
	}), 20*time.Millisecond)
	eventually(t, "up", s.up.Load)
	hangs.Store(true)
	for range 50 {
		if r := a.Enter(time.Now()); r.Reason != tenancy.Uncounted {
			t.Fatalf("%+v", r)
		}
	}
	if n := s.Figures(); n.Late > 1 || n.Alone != 50 {
		t.Errorf("%+v, want at most one that has waited", n)
	}
	eventually(t, "out", func() bool { return !s.Known() })
	hangs.Store(false)
	eventually(t, "up again", s.up.Load)
	if v := s.View().String(); v != "counted for 2 gateways in "+s.o.Location.String() {
		t.Error(v)
	}
}

// An answer that is none of the script's, and an error, are an outage, whose reason is shown.
func TestWrongServer(t *testing.T) {
	for reply, want := range map[string]string{
		"-WRONGPASS invalid username-password pair\r\n": "WRONGPASS",
		"*1\r\n:1\r\n":             "unexpected type",
		"HTTP/1.1 400\r\n":         "redigo: unexpected response line",
		"$9223372036854775807\r\n": "claims more than",
		"*1000000000\r\n":          "claims more than",
	} {
		s, _, _ := begin(t, startFake(t, func(args []string) string {
			if args[0] == "SCRIPT" && reply[0] == '*' {
				return "+OK\r\n"
			}
			return reply
		}), time.Second)
		eventually(t, "shown "+want, func() bool { return s.View().State == Out && strings.Contains(s.View().Reason, want) })
	}
}
