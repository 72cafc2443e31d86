package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Each command refuses a pipe, a device and a folder where a file is wanted, and names it. Where a
// pipe may be read, one without a writer is empty and holds nothing up.
func TestOnlyRegularFiles(t *testing.T) {
	commandLines(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(syscall.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("folder"), 0o700), os.Mkdir(at("model"), 0o700), syscall.Mkfifo(at("model/tokenizer.json"), 0o600)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, at("keys"), "keys: {}\n")
	const serve = "serve --listen 127.0.0.1:0 --admin-listen off --engine openai=http://127.0.0.1:1,name=a "
	for _, command := range []string{
		"keys list --keys PATH", "keys add x --keys PATH", "keys revoke x --keys PATH", "validate PATH", "report PATH", "report --merge PATH", "experiment PATH",
		"engine --offline ONCE", "engine --listen 127.0.0.1:0 --admin-listen off --cost table=ONCE", "engine --ssl-certfile PATH",
		"fleet ONCE", "bench http://127.0.0.1:1 --workload ONCE", "bench http://127.0.0.1:1 --image PATH --model m --requests 1", "tokenize ONCE", "tokenize --decode ONCE",
		"why --admin http://127.0.0.1:1 --request ONCE", "engines list --admin http://127.0.0.1:1 --admin-key-file ONCE", "engines list --admin https://127.0.0.1:1 --admin-ca PATH",
		"serve --config PATH", "serve --engine file=PATH", "serve --engine http://127.0.0.1:1,key-file=PATH", "serve --engine https://127.0.0.1:1,ca=PATH", "serve --engine https://127.0.0.1:1,cert=PATH",
		serve + "--keys PATH", serve + "--admin-keys PATH", serve + "--tls-cert PATH --tls-key PATH", serve + "--admin-tls-cert PATH --admin-tls-key PATH",
		serve + "--keys " + at("keys") + " --budget-file PATH",
	} {
		for name, want := range map[string]string{at("fifo"): "a pipe (FIFO)", "/dev/zero": "a device", at("folder"): "a folder"} {
			once := strings.Contains(command, "ONCE")
			args := strings.Fields(strings.NewReplacer("PATH", name, "ONCE", name).Replace(command))
			began := time.Now()
			code, _, stderr := run(t, args...)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%v took %v", args, took)
			}
			if once && name == at("fifo") {
				continue
			}
			if code == 0 || !strings.Contains(stderr, name) || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, want an error about %q: %s", args, code, want, stderr)
			}
		}
	}
	if code, _, stderr := run(t, "tokenize", "--model", at("model"), at("keys")); code == 0 || !strings.Contains(stderr, "a pipe (FIFO)") {
		t.Errorf("a model's folder with a pipe: exit status %d: %s", code, stderr)
	}
}

// endless is a text without an end.
type endless string

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e[i%len(e)]
	}
	return len(p), nil
}

// An endless standard input is refused.
func TestEndlessInput(t *testing.T) {
	commandLines(t)
	for _, test := range []struct{ command, input, want string }{
		{"tokenize -", "x", "longer than 64 MiB"},
		{"engine --offline -", "{", "longer than 64 MiB"},
		{"engine --offline -", "\x00", "standard input"},
	} {
		var stderr bytes.Buffer
		if code := Main(strings.Fields(test.command), endless(test.input), new(bytes.Buffer), &stderr); code == 0 || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%s: exit status %d: %.300s", test.command, code, &stderr)
		}
	}
}

// A file that is too long, or too deep, is refused with the bound.
func TestLongFiles(t *testing.T) {
	commandLines(t)
	path := filepath.Join(t.TempDir(), "file")
	var unknown strings.Builder
	for i := range 80_000 {
		fmt.Fprintf(&unknown, "x%d: 1\n", i)
	}
	for _, test := range []struct{ command, text, want string }{
		{"validate", strings.Repeat("#\n", 1<<19) + "#", "longer than 1 MiB"},
		{"keys list --keys", "keys: " + strings.Repeat("[", 200_000), "inside of each other more than 32 times"},
		{"validate", "engine: " + strings.Repeat("[", 200_000), "inside of each other more than 32 times"},
		{"validate", "engine:\n" + strings.Repeat("- ", 1000), "inside of each other more than 32 times"},
		{"validate", unknown.String(), "more than 100 things are wrong"},
		{"experiment", "load: " + strings.Repeat("{a: ", 1000), "inside of each other more than 32 times"},
		{"report", `{"request_id":` + strings.Repeat("1", 5<<20), "longer than 4 MiB"},
	} {
		writeFile(t, path, test.text)
		if code, _, stderr := run(t, append(strings.Fields(test.command), path)...); code == 0 || !strings.Contains(stderr, test.want) {
			t.Errorf("%s %.20q: exit status %d: %.300s", test.command, test.text, code, stderr)
		}
	}
}

// A list of engines in whose place one with engines is in force must say that it has none.
func TestListsAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	had := map[string][]string{path: {"http://h:1"}}
	for text, want := range map[string]string{"": "write the line", "# none\n": "write the line", "none\n": "", "http://h:2\n": ""} {
		writeFile(t, path, text)
		if _, err := readLists([]string{"file=" + path}, had); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A signal ends a start at once, with what it has been reading.
func TestStopBeforeStart(t *testing.T) {
	stopping, stop := context.WithCancel(t.Context())
	reading, read := make(chan bool), make(chan bool)
	defer close(read)
	go func() { <-reading; stop() }()
	_, err := unlessStopped(stopping, 7, func() (int, error) { close(reading); <-read; return 1, nil })
	if err != exitStatus(7) {
		t.Errorf("%v, want the exit status 7", err)
	}
	if n, err := unlessStopped(t.Context(), 7, func() (int, error) { return 1, nil }); n != 1 || err != nil {
		t.Errorf("%d, %v without a signal", n, err)
	}
}
