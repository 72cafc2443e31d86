//go:build linux

package hostile

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/certtest"
	"weir/test/e2e/harness"
)

// testFiles has commands and gateways read files of operators.
func testFiles(t *testing.T) {
	for name, part := range map[string]func(t *testing.T){
		"rows": func(t *testing.T) { beside(4, rows(t, "files.txt"), func(r row) { fileRow(t, r) }) },
		"many": manyKeys, "watched": watched,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); part(t) })
	}
}

// fileRow runs a command with a file. The command must end by itself, without a crash, within its memory.
func fileRow(t *testing.T, r row) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	switch r.want["kind"] {
	case "":
		harness.WriteFile(t, file, grammar(nil).expand(nil, strings.Join(r.texts, ""), map[string]string{"hash": strings.Repeat("0", 64)}))
	case "fifo":
		if err := syscall.Mkfifo(file, 0o600); err != nil {
			t.Error(err)
			return
		}
	case "zero":
		file = "/dev/zero"
	case "link":
		if err := os.Symlink("/dev/zero", file); err != nil {
			t.Error(err)
			return
		}
	}
	var args []string
	for _, a := range strings.Fields(r.want["command"]) {
		a = strings.ReplaceAll(a, "FILE", file)
		args = append(args, strings.ReplaceAll(a, "KEYS", keysFile(t, 0)))
	}
	u := command(t, 15*time.Second, nil, args...)
	bomb(t, r.title, u.output)
	if most := r.number(t, "peak", 150); u.code == -1 || u.code == 0 && r.want["code"] != "0" || u.peak > most {
		t.Errorf("%s: exit code %d after %.1f s and %.1f s of CPU, %d MB of %d at the peak: %.200s", r.title, u.code, u.wall.Seconds(), u.cpu.Seconds(), u.peak, most, u.output)
	}
}

// manyKeys wants the time of keys to be linear, and signals to end a start.
func manyKeys(t *testing.T) {
	many := keysFile(t, 60_000)
	u := command(t, 30*time.Second, nil, "keys", "list", "--keys", many)
	t.Logf("60,000 keys: %.1f s of CPU, %d MB", u.cpu.Seconds(), u.peak)
	if u.code != 0 || u.cpu > 3*time.Second || u.peak > 180 {
		t.Errorf("60,000 keys: exit code %d, %.1f s of CPU, %d MB: %.200s", u.code, u.cpu.Seconds(), u.peak, u.output)
	}
	var signalled time.Time
	u = command(t, 20*time.Second, func(pid int) {
		time.Sleep(400 * time.Millisecond) // the start reads the keys
		signalled = time.Now()
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--engine", "http://127.0.0.1:1", "--keys", keysFile(t, 300_000), "--budget-file", "off")
	if took := time.Since(signalled); took > 1500*time.Millisecond {
		t.Errorf("SIGTERM during a start: ended %.1f s later with %d", took.Seconds(), u.code)
	}
}

// watched rewrites the files of a running gateway. A good key and a good certificate serve on.
func watched(t *testing.T) {
	engine := startScripted(t, nil)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	roots := harness.KeyPair(t, cert, key, 1)
	keys := keysFile(t, 200)
	whole := keysText(200)
	secure := client(10 * time.Second)
	secure.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	b := serve(t, "watched", func(b *bed) { ask(secure, b.URL, chat("m", "warm")) }, engine.hangUp,
		"--engine", "openai="+engine.url()+",model=m", "--keys", keys, "--budget-file", "off", "--tls-cert", cert, "--tls-key", key,
		"--body-timeout", "20s") // which bounds handshakes, of which each request has one here
	b.lives("the start")
	write := func(path string, parts ...string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for i, p := range parts {
			if i > 0 {
				time.Sleep(300 * time.Millisecond)
			}
			if _, err := f.WriteString(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := strings.Index(whole, "  u100:")
	one, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := certtest.Make("other", 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		name string
		do   func()
	}{
		{"the keys file in two halves", func() {
			for range 4 {
				write(keys, whole[:at], whole[at:])
				time.Sleep(300 * time.Millisecond)
			}
		}},
		{"the keys file emptied", func() { swap(t, keys, text("")) }},
		{"no keys in it", func() { swap(t, keys, text("keys:\n")) }},
		{"nested brackets in the keys file", func() { swap(t, keys, text("keys: "+strings.Repeat("[", 40_000))) }},
		{"a long line in the keys file", func() { swap(t, keys, text("keys: "+strings.Repeat("a", 50<<20))) }},
		{"the keys file is /dev/zero", func() { swap(t, keys, func(p string) error { return os.Symlink("/dev/zero", p) }) }},
		{"the keys file is a fifo", func() { swap(t, keys, func(p string) error { return syscall.Mkfifo(p, 0o600) }) }},
		{"the keys file whole again", func() { swap(t, keys, text(whole)) }},
		{"a chain of a thousand certificates", func() { swap(t, cert, text(strings.Repeat(string(one), 1000))) }},
		{"another key", func() { swap(t, key, text(string(other))) }},
	} {
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for said := false; ; time.Sleep(50 * time.Millisecond) {
				if s, body := ask(secure, b.URL, chat("m", change.name)); (s != 200 || answerText(body) != change.name) && !said {
					t.Errorf("%s: a good key got %d %.200s", change.name, s, body)
					said = true
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		change.do()
		time.Sleep(2 * time.Second) // files are looked at once a second, and on a busy machine later
		close(stop)
		<-over
		if !b.lives(change.name) {
			return
		}
	}
	b.settled("files", 250)
}

// text makes a file that has it.
func text(content string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
}

// swap puts a file in place of another one at once, so that nobody waits for the end of a writing.
func swap(t *testing.T, path string, make func(path string) error) {
	if err := make(path + ".new"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // a tick of the file system's clock
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// testKilled kills a gateway in the middle of its work, again and again, and starts it on the same files.
func testKilled(t *testing.T) {
	engine := startScripted(t, nil)
	dir := t.TempDir()
	keys := keysFile(t, 0, "tokens_per_day: 900000000")
	usage, timeline := filepath.Join(dir, "usage.jsonl"), filepath.Join(dir, "timeline.jsonl")
	for i := range 3 {
		b := &bed{t: t, name: "killed", Gateway: harness.StartGateway(t, append([]string{"serve", "--engine", "openai=" + engine.url() + ",model=m", "--keys", keys, "--usage-log", usage}, append(quick, "--timeline", timeline)...)...)}
		spent := usedToday(b)
		if i > 0 && spent == 0 {
			t.Errorf("start %d: the budget is new", i)
		}
		// Each line is whole, once the gateway has started: of the last one before the kill there may be none.
		n := len(usageLines(t, usage))
		usageLines(t, timeline)
		hurry := client(5 * time.Second)
		done := make(chan struct{})
		for range 4 {
			go func() {
				for {
					select {
					case <-done:
						return
					default:
						ask(hurry, b.URL, chat("m", "on and on"))
					}
				}
			}()
		}
		time.Sleep(1300*time.Millisecond + time.Duration(i)*7*time.Millisecond) // the budget file is written once a second
		until(10*time.Second, func() bool { text, _ := os.ReadFile(usage); return strings.Count(string(text), "\n") > n })
		b.Kill()
		close(done)
		hurry.CloseIdleConnections()
		for _, file := range []string{usage, timeline} { // what a torn write leaves
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(f, `{"request_id":"half`)
			f.Close()
		}
		if text, err := os.ReadFile(usage); err != nil || strings.Count(string(text), "\n") <= n {
			t.Errorf("start %d: %d lines before, %d after: %v", i, n, strings.Count(string(text), "\n"), err)
		}
	}
}
