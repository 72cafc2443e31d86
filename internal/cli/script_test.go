package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"weir/test/certtest"
)

// TestScripts runs testdata/script/*.txtar: command lines of weir, and what they
// print. Each runs in this process, which the built program does no more than wrap,
// so that a script costs no more than its work. Environment and working folder are
// therefore the test's own: scripts name their files as $WORK/file, and those of the
// repository as $ROOT/file. These commands are theirs beside testscript's own:
//
//	weir ARG...                  runs weir, which must exit with 0; <FILE is its
//	                             standard input, and &NAME& leaves it running
//	exit CODE weir ARG...        the same for another exit code
//	until PATTERN weir ARG...    runs weir until its output matches
//	line NAME PREFIX VAR         waits until NAME prints a line that begins with
//	                             PREFIX, and puts the line's next word into $VAR
//	interrupt NAME               sends Ctrl-C to NAME, which must exit with 0
//	count N FILE                 FILE has N lines
//	json FILE                    FILE is JSON
//	keypair CERT KEY             writes a certificate and its private key
//	request URL ID               sends a chat with a request id, and reads its stream of 3 tokens
//
// Under -short, which the race detector's runs set, only those run that leave something
// running.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	if testing.Short() {
		files = slices.DeleteFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && !regexp.MustCompile(`(?m) &\w+&$`).Match(text)
		})
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(e *testscript.Env) error {
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			e.Setenv("ROOT", root)
			running := map[string]*execution{}
			e.Values[runningKey{}] = running
			e.Defer(func() {
				for _, x := range running {
					x.stop()
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"weir":      scriptWeir,
			"exit":      scriptExit,
			"until":     scriptUntil,
			"line":      scriptLine,
			"interrupt": scriptInterrupt,
			"count":     scriptCount,
			"json":      scriptJSON,
			"keypair":   scriptKeyPair,
			"request":   scriptRequest,
		},
		RequireUniqueNames: true,
	})
}

type runningKey struct{}

// checkUsage refuses a negation, and any other number of arguments than usage has;
// from least on where it ends in dots.
func checkUsage(ts *testscript.TestScript, neg bool, args []string, usage string) {
	want := len(strings.Fields(usage)) - 1
	if neg || len(args) < want || len(args) > want && !strings.HasSuffix(usage, "...") {
		ts.Fatalf("usage: %s", usage)
	}
}

// begin starts a command line of a script, and gives its name if it is to be left
// running.
func begin(ts *testscript.TestScript, args []string) (x *execution, name string) {
	stdin := ""
	var rest []string
	for i, arg := range args {
		if file, ok := strings.CutPrefix(arg, "<"); ok {
			stdin = ts.ReadFile(file)
		} else if i == len(args)-1 && len(arg) > 2 && arg[0] == '&' && arg[len(arg)-1] == '&' {
			name = arg[1 : len(arg)-1]
		} else {
			rest = append(rest, arg)
		}
	}
	return begun(strings.NewReader(stdin), rest...), name
}

// end waits for a command line's end, makes its output the script's, and checks its
// exit code.
func end(ts *testscript.TestScript, x *execution, code int) {
	ended := x.ends(patience) || x.stop()
	fmt.Fprint(ts.Stdout(), x.out.String())
	fmt.Fprint(ts.Stderr(), x.err.String())
	if !ended {
		ts.Fatalf("still running after %v, and not to be interrupted", 2*patience)
	}
	if x.code != code {
		ts.Fatalf("exit code %d, want %d", x.code, code)
	}
}

func scriptWeir(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("! weir: say which exit code it must have: exit CODE weir ...")
	}
	x, name := begin(ts, args)
	if name == "" {
		end(ts, x, 0)
		return
	}
	ts.Value(runningKey{}).(map[string]*execution)[name] = x
}

func scriptExit(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "exit CODE weir ...")
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	x, name := begin(ts, args[2:])
	if args[1] != "weir" || name != "" {
		ts.Fatalf("usage: exit CODE weir ARG...")
	}
	end(ts, x, code)
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "until PATTERN weir ...")
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		x, _ := begin(ts, args[2:])
		if <-x.done; pattern.MatchString(x.out.String()) {
			fmt.Fprint(ts.Stdout(), x.out.String())
			fmt.Fprint(ts.Stderr(), x.err.String())
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("never printed %s, but %s%s", args[0], x.out.String(), x.err.String())
		}
	}
}

// scriptProcess finds what was left running under a name.
func scriptProcess(ts *testscript.TestScript, name string) *execution {
	x := ts.Value(runningKey{}).(map[string]*execution)[name]
	if x == nil {
		ts.Fatalf("nothing was left running as &%s&", name)
	}
	return x
}

func scriptLine(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "line NAME PREFIX VAR")
	word, err := scriptProcess(ts, args[0]).line(args[1])
	ts.Check(err)
	ts.Setenv(args[2], word)
}

func scriptInterrupt(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "interrupt NAME")
	x := scriptProcess(ts, args[0])
	x.interrupt()
	end(ts, x, 0)
}

func scriptCount(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "count N FILE")
	if n := strconv.Itoa(strings.Count(ts.ReadFile(args[1]), "\n")); n != args[0] {
		ts.Fatalf("%s has %s lines, want %s", args[1], n, args[0])
	}
}

func scriptJSON(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "json FILE")
	if !json.Valid([]byte(ts.ReadFile(args[0]))) {
		ts.Fatalf("%s is no JSON", args[0])
	}
}

func scriptKeyPair(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "keypair CERT KEY")
	cert, key, err := certtest.Make("weir", 1)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), cert, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), key, 0o600))
}

func scriptRequest(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, neg, args, "request URL ID")
	body := `{"model": "weir-sim", "stream": true, "max_tokens": 3, "ignore_eos": true, "messages": [{"role": "user", "content": "Hello"}]}`
	req, err := http.NewRequest(http.MethodPost, args[0]+"/v1/chat/completions", strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", args[1])
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("[DONE]")) {
		ts.Fatalf("%s: %s", resp.Status, answer)
	}
}

// patience bounds a wait for what must come.
const patience = 2 * time.Minute

// execution is a command line on its way.
type execution struct {
	out, err writes
	signals  chan os.Signal
	done     chan struct{} // closed when code is set
	code     int
}

// begun starts a command line.
func begun(stdin io.Reader, args ...string) *execution {
	x := &execution{signals: make(chan os.Signal, 2), done: make(chan struct{})}
	x.out.more = make(chan struct{})
	go func() {
		defer close(x.done)
		x.code = execute(args, &streams{in: stdin, out: &x.out, err: &x.err, notify: x.notify})
	}()
	return x
}

func (x *execution) notify(to chan<- os.Signal, some ...os.Signal) (stop func()) {
	if !slices.Contains(some, os.Interrupt) {
		return func() {}
	}
	stopped := make(chan struct{})
	var forward sync.WaitGroup
	forward.Go(func() {
		for {
			select {
			case s := <-x.signals:
				select {
				case to <- s:
				case <-stopped:
					return
				}
			case <-stopped:
				return
			}
		}
	})
	return func() {
		close(stopped)
		forward.Wait()
	}
}

// interrupt sends Ctrl-C, of which a command heeds two.
func (x *execution) interrupt() {
	select {
	case x.signals <- os.Interrupt:
	default:
	}
}

// ends reports whether it ends within a time.
func (x *execution) ends(within time.Duration) bool {
	select {
	case <-x.done:
		return true
	case <-time.After(within):
		return false
	}
}

// stop interrupts it, and says whether that ends it.
func (x *execution) stop() bool {
	x.interrupt()
	return x.ends(patience)
}

// line waits for a line that begins so and gives its next word.
func (x *execution) line(prefix string) (string, error) {
	deadline := time.After(patience)
	for ended := false; ; {
		text, more := x.out.now()
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(line, "\n") {
				word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				return word, nil
			}
		}
		if ended {
			return "", fmt.Errorf("ended with %d before it printed %q: %s", x.code, prefix, x.err.String())
		}
		select {
		case <-more:
		case <-x.done:
			ended = true
		case <-deadline:
			return "", fmt.Errorf("never printed %q", prefix)
		}
	}
}

// writes is a buffer that can be read while it is written.
type writes struct {
	mu   sync.Mutex
	all  bytes.Buffer
	more chan struct{} // closed and replaced by every write; nil where nobody waits
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.more != nil {
		close(w.more)
		w.more = make(chan struct{})
	}
	return w.all.Write(p)
}

func (w *writes) now() (text string, more <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String(), w.more
}

func (w *writes) String() string {
	text, _ := w.now()
	return text
}
