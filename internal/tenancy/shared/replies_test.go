package shared

import (
	"bytes"
	"errors"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gomodule/redigo/redis"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// said is a connection on which a server has said something.
type said struct {
	net.Conn
	io.Reader
}

func (s said) Read(p []byte) (int, error)    { return s.Reader.Read(p) }
func (said) SetReadDeadline(time.Time) error { return nil }
func (said) Close() error                    { return nil }

// received is what the client library makes of a reply, and the bytes that it allocated.
func received(c net.Conn) (reply any, allocated uint64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		runtime.ReadMemStats(&after)
		allocated = after.TotalAlloc - before.TotalAlloc
	}()
	reply, err = redis.NewConn(c, 0, 0).Receive()
	return
}

// A reply that is in bounds is what the client library makes of it, wherever it is cut, and no
// other one is allocated.
func TestReplies(t *testing.T) {
	const most = 1 << 20
	many := strings.Repeat
	for _, x := range []struct{ reply, wrong string }{
		{"+OK\r\n", ""}, {"-ERR no\r\n", "no"}, {":-9223372036854775808\r\n", ""}, {"$-1\r\n", ""}, {"*-1\r\n", ""}, {"$0\r\n\r\n", ""}, {"*0\r\n", ""},
		{"$60000\r\n" + many("a", 60000) + "\r\n", ""},
		{"*1024\r\n" + many(":1\r\n", 1024), ""},
		{"*2\r\n$3\r\n*1\r\r\n:5\r\n", ""},
		{"$9223372036854775807\r\n", "claims more"}, {"$2147483647\r\n" + many("a", 1<<20), "claims more"}, {"$99999999999999999999\r\n", "claims more"},
		{"$65536\r\n", "claims more"}, {"*1000000000\r\n", "claims more"}, {"*1025\r\n", "claims 1025 elements"}, {"*1000\r\n" + many("$1000\r\n"+many("a", 1000)+"\r\n", 1000), "claims more"},
		{many("*1\r\n", 1<<20), "array within an array"}, {"+" + many("a", 1<<20), "more than 65536 bytes"}, {":" + many("1", 1<<20), "more than 65536 bytes"},
		{"$-9\r\n", "no reply of Redis"}, {"$+5\r\n", "no reply of Redis"}, {"*1e9\r\n", "no reply of Redis"}, {"\x00\xff hello\r\n", "unexpected response line"},
	} {
		want, _, _ := any(nil), 0, 0
		if x.wrong == "" || x.wrong == "no" {
			want, _, _ = received(said{Reader: strings.NewReader(x.reply)})
		}
		for _, reader := range []io.Reader{strings.NewReader(x.reply), iotest.OneByteReader(strings.NewReader(x.reply))} {
			reply, allocated, err := received(&replies{Conn: said{Reader: reader}})
			if !reflect.DeepEqual(reply, want) || (err == nil) != (x.wrong == "") || err != nil && !strings.Contains(err.Error(), x.wrong) {
				t.Errorf("%.40q: %.40v, %v; want %q", x.reply, reply, err, x.wrong)
			}
			if allocated > most {
				t.Errorf("%.40q: %d bytes were allocated", x.reply, allocated)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"+", "-", ":", "$", "*", "\r\n", "\r", "\n", "0", "1", "7", "99", "-1", "65536", "2147483647", "a", many("b", 5000), "$3\r\nabc\r\n", ":1\r\n", "*2\r\n"})
		text := strings.Join(rapid.SliceOfN(part, 0, 40).Draw(t, "reply"), "")
		c := redis.NewConn(&replies{Conn: said{Reader: iotest.HalfReader(bytes.NewReader([]byte(text)))}}, 0, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for err := error(nil); err == nil; {
			if _, err = c.Receive(); errors.As(err, new(redis.Error)) {
				err = nil
			}
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > most {
			t.Errorf("%d bytes were allocated", after.TotalAlloc-before.TotalAlloc)
		}
	})
}

// panics is a client library with a defect.
type panics struct{ redis.Conn }

func (panics) Do(string, ...any) (any, error) { panic("in a reply") }
func (panics) Send(string, ...any) error      { panic("in a reply") }
func (panics) Close() error                   { return nil }

// A panic while the store's answers are read ends the connection, and the requests that wait are
// decided without it.
func TestPanic(t *testing.T) {
	told := 0
	c := &connection{redis: panics{}, panicked: func(*infer.Panic) { told++ }}
	_, err := c.enroll(false)
	for _, err := range []error{err, c.exchange([]*carried{{share: &tenancy.Share{}, call: &tenancy.Call{}}})} {
		if p, ok := errors.AsType[*infer.Panic](err); !ok || p.Value != "in a reply" {
			t.Errorf("got %v", err)
		}
	}
	if told != 2 {
		t.Errorf("told of %d panics", told)
	}
}
