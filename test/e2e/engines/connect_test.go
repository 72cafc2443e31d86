package engines

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A gateway waits no longer than --connect-timeout, 5s by default, for an engine whose machine
// accepts no more connections.
func TestConnectTimeout(t *testing.T) {
	harness.Beside(t, harness.Light)
	l, fill := full(t)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 23\r\n\r\n"+`{"data":[{"id":"m"}]}  `)
		}
	}()
	const bound = 7 * time.Second
	g := harness.StartGateway(t, "serve", "--engine", "openai=http://"+l.Addr().String(), "--connect-timeout", bound.String())
	<-answered
	fill()
	begun := time.Now()
	a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"m","messages":[]}`)
	if took := time.Since(begun); a.Status != 503 || !strings.Contains(string(a.Body), "cannot be reached") || took < bound || took > 10*bound {
		t.Errorf("after %v: %d %s", took, a.Status, a.Body)
	}
	g.Interrupt()
}

// full returns a listener whose queue fill fills: what connects then is not answered.
func full(t *testing.T) (l net.Listener, fill func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	if l, err = net.FileListener(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, func() {
		for range 64 {
			c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second)
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
		t.Fatal("the queue takes everything")
	}
}
