//go:build interop

// Package limits has gateways of the built binary count limits in a Redis server that is killed,
// stopped, slow, and started again without its memory.
package limits

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// server is a Redis server that keeps nothing on disk.
type server struct {
	t    *testing.T
	addr string
	cmd  *exec.Cmd
}

// start starts a server at an address.
func start(t *testing.T, addr string, args ...string) *server {
	t.Helper()
	_, port, _ := strings.Cut(addr, ":")
	s := &server{t: t, addr: addr, cmd: exec.CommandContext(harness.Context(t), "redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, args...)...)}
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("%v (make redis installs it)", err)
	}
	t.Cleanup(s.kill)
	return s
}

func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// cli runs a command of redis-cli.
func (s *server) cli(args ...string) string {
	s.t.Helper()
	_, port, _ := strings.Cut(s.addr, ":")
	out, err := exec.CommandContext(harness.Context(s.t), "redis-cli", append([]string{"-p", port}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("redis-cli %v: %v %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// bed is two gateways with one keys file in front of one engine.
type bed struct {
	t    *testing.T
	keys map[string]string
	of   [2]*harness.Gateway
}

// key is a key of a bed, with its limits as flags of weir keys add.
type key struct{ name, limits string }

func startBed(t *testing.T, keys []key, args ...string) *bed {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	b := &bed{t: t, keys: map[string]string{}}
	for _, k := range keys {
		out, errs, code := harness.Finish(t, "", append([]string{"keys", "add", k.name, "--keys", file}, strings.Fields(k.limits)...)...)
		if code != 0 {
			t.Fatal(errs)
		}
		b.keys[k.name] = strings.TrimSpace(out)
	}
	sim := harness.StartSim(t)
	for i := range b.of {
		b.of[i] = harness.StartGateway(t, append([]string{"serve", "--engine", sim.Spec("plane"), "--keys", file}, args...)...)
	}
	return b
}

// together waits until both gateways count in the store, and know of each other.
func (b *bed) together() {
	b.t.Helper()
	for _, g := range b.of {
		harness.Eventually(b.t, "a gateway counts with the other one", func() bool {
			return harness.Metric(b.t, g.Admin, "weir_limits_store_up") == 1 && harness.Metric(b.t, g.Admin, "weir_limits_gateways") == 2
		})
	}
}

// ask sends a request with a key to a gateway, and returns the status, the reason of a refusal,
// and the body, which is still to be read where the status is 200.
func (b *bed) ask(gateway int, key, body string) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(harness.Context(b.t), http.MethodPost, b.of[gateway].URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.keys[key])
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	return resp, resp.Header.Get("X-Refusal-Reason")
}

const short = `{"model":"weir-sim","prompt":"hi","max_tokens":1}`

// wins sends n requests in turn to both gateways, and returns how many are admitted.
func (b *bed) wins(key string, n int) (admitted int) {
	b.t.Helper()
	for i := range n {
		resp, why := b.ask(i%2, key, short)
		_, _ = io.Copy(io.Discard, resp.Body)
		switch resp.StatusCode {
		case http.StatusOK:
			admitted++
		case http.StatusTooManyRequests:
			if why != "key_requests_per_minute" || resp.Header.Get("Retry-After") == "" {
				b.t.Fatalf("refused for %q, Retry-After %q", why, resp.Header.Get("Retry-After"))
			}
		default:
			b.t.Fatalf("status %d", resp.StatusCode)
		}
	}
	return admitted
}

// shown is what weir limits prints at a gateway.
func (b *bed) shown(gateway int) string {
	b.t.Helper()
	out, errs, code := harness.Finish(b.t, "", "limits", "--admin", b.of[gateway].Admin)
	if code != 0 {
		b.t.Fatal(errs)
	}
	return out
}

// Two gateways have one caller's limits between them: of requests a minute, of requests at once,
// and of tokens of a day. Both show what is used, whoever served it, and a gateway that starts
// again renews nothing. One that is killed takes its requests under way along.
func TestTogether(t *testing.T) {
	harness.Beside(t, harness.Light)
	redis := start(t, harness.FreeAddress(t), "--requirepass", "secret of the store")
	b := startBed(t, []key{{"minute", "--requests-per-minute 60"}, {"atonce", "--max-requests 3"}, {"day", "--tokens-per-day 40"}, {"free", ""}},
		"--limits", "redis://:secret%20of%20the%20store@"+redis.addr+"/3", "--limits-wait", "2s", "--limits-prefix", "here:")
	b.together()
	began := time.Now()
	got := b.wins("minute", 150)
	if most := 61 + int(time.Since(began).Seconds()); got < 60 || got > most {
		t.Errorf("%d requests were admitted of 60 a minute, want 60 to %d", got, most)
	}
	if alone := harness.Metric(t, b.of[0].Admin, "weir_limits_decisions_total", `by="gateway"`); alone != 0 {
		t.Errorf("%v requests were decided without the store", alone)
	}

	long := `{"model":"weir-sim","prompt":"hi","stream":true,"max_tokens":50000,"ignore_eos":true}`
	var open []*http.Response
	for i := range 3 {
		resp, why := b.ask(i%2, "atonce", long)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("the stream %d is refused for %q", i, why)
		}
		open = append(open, resp)
		go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
	}
	for i := range 2 {
		if resp, why := b.ask(i, "atonce", short); why != "key_max_requests" {
			t.Errorf("with 3 under way gateway %d answers %d %q", i, resp.StatusCode, why)
		}
		if shows := b.shown(i); !strings.Contains(shows, " 3/3 ") || !strings.HasPrefix(shows, "counted for 2 gateways in redis://"+redis.addr+"/3\n") || strings.Contains(shows, "secret") {
			t.Errorf("gateway %d shows\n%s", i, shows)
		}
	}
	open[1].Body.Close()
	harness.Eventually(t, "the other gateway learns of a free place", func() bool {
		resp, _ := b.ask(0, "atonce", long)
		go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
		return resp.StatusCode == http.StatusOK
	})

	used := 0
	for i := 0; ; i++ {
		resp, why := b.ask(i%2, "day", short)
		if resp.StatusCode != http.StatusOK {
			if why != "key_tokens_per_day" {
				t.Errorf("refused for %q", why)
			}
			break
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(string(regexp.MustCompile(`"total_tokens":\s*(\d+)`).FindSubmatch(body)[1]))
		if err != nil {
			t.Fatal(err)
		}
		if used += n; used > 200 {
			t.Fatalf("%d tokens are used of 40 a day", used)
		}
		harness.Eventually(t, "both show the tokens", func() bool {
			want := fmt.Sprintf(" %d/40 ", used)
			return strings.Contains(b.shown(0), want) && strings.Contains(b.shown(1), want)
		})
	}
	if used < 40 {
		t.Errorf("refused after %d tokens of 40", used)
	}
	b.of[1].Kill()
	harness.Eventually(t, "requests of a gateway that was killed no longer count", func() bool {
		return strings.Contains(b.shown(0), "counted for 1 gateway ") && strings.Contains(b.shown(0), " 3/3 ")
	})
	if resp, why := b.ask(0, "day", short); why != "key_tokens_per_day" {
		t.Errorf("the day of a gateway that was killed is renewed: %d", resp.StatusCode)
	}
	if key := redis.cli("--no-auth-warning", "-a", "secret of the store", "-n", "3", "exists", "here:limits:free"); key != "0" {
		t.Error("a caller without limits is counted")
	}
}

// While the server is gone, each of two gateways allows half of the limits and serves on; that is
// logged once, and shown. The server comes back without its memory, and is counted in again.
func TestKilled(t *testing.T) {
	harness.Beside(t, harness.Light)
	addr := harness.FreeAddress(t)
	redis := start(t, addr)
	b := startBed(t, []key{{"one", "--requests-per-minute 60"}, {"two", "--requests-per-minute 60"}, {"day", "--tokens-per-day 1000"}}, "--limits", "redis://"+addr, "--limits-wait", "1s")
	b.together()
	for range 4 {
		b.ask(0, "day", short)
	}
	harness.Eventually(t, "the store has the tokens", func() bool { return redis.cli("hget", "weir:limits:day", "used") == "12" })
	redis.kill()
	for _, g := range b.of {
		harness.Eventually(t, "a gateway notices", func() bool { return harness.Metric(t, g.Admin, "weir_limits_store_up") == 0 })
	}
	began := time.Now()
	got := b.wins("one", 120)
	if most := 61 + int(time.Since(began).Seconds()); got < 60 || got > most {
		t.Errorf("%d requests were admitted by two gateways of 60 a minute, want 60 to %d", got, most)
	}
	if late := harness.Metric(t, b.of[0].Admin, "weir_limits_late_total"); late != 0 {
		t.Errorf("%v requests have waited for a store that is not there", late)
	}
	if shows := b.shown(0); !strings.Contains(shows, "is out since") || !strings.Contains(shows, "this gateway allows 1/2 of each limit") || !strings.Contains(shows, " 60/60 ") && !strings.Contains(shows, " 59/60 ") { // one comes back each second
		t.Errorf("shown:\n%s", shows)
	}
	redis = start(t, addr)
	b.together()
	began = time.Now()
	if got = b.wins("two", 150); got < 60 || got > 61+int(time.Since(began).Seconds()) {
		t.Errorf("%d requests were admitted of 60 a minute after the store came back", got)
	}
	b.ask(0, "day", short)
	harness.Eventually(t, "what the gateway had used of its day is in a store without memory", func() bool { return redis.cli("hget", "weir:limits:day", "used") == "15" })
	b.of[0].Interrupt()
	log := b.of[0].Stderr.String()
	if down, again := strings.Count(log, "limits are not counted together"), strings.Count(log, "counted together with other gateways again"); down > 1 || again != down {
		t.Errorf("an outage is logged %d times, and its end %d times:\n%s", down, again, log)
	}
}

// A server that stands still is waited for once: the next requests do not wait. With
// --limits-outage refuse they are refused, and callers without limits are served. It is a server
// over TLS.
func TestStopped(t *testing.T) {
	harness.Beside(t, harness.Light)
	addr, dir := harness.FreeAddress(t), t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	harness.KeyPair(t, cert, private, 1)
	_, port, _ := strings.Cut(addr, ":")
	redis := start(t, addr, "--port", "0", "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", private, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	b := startBed(t, []key{{"one", "--requests-per-minute 6000"}, {"free", ""}}, "--limits", "rediss://"+addr, "--limits-ca", cert, "--limits-outage", "refuse", "--limits-wait", "1s")
	b.together()
	redis.signal(syscall.SIGSTOP)
	defer redis.signal(syscall.SIGCONT)
	began, late := time.Now(), 0
	for i := range 20 {
		resp, why := b.ask(i%2, "one", short)
		if resp.StatusCode != http.StatusServiceUnavailable || why != "limits_store" || resp.Header.Get("Retry-After") == "" {
			t.Fatalf("answer %d, %q", resp.StatusCode, why)
		}
		if resp, _ := b.ask(i%2, "free", short); resp.StatusCode != http.StatusOK {
			t.Fatalf("a caller without limits gets %d", resp.StatusCode)
		}
	}
	for _, g := range b.of {
		late += int(harness.Metric(t, g.Admin, "weir_limits_late_total"))
	}
	if took := time.Since(began); late > 2 || took > 10*time.Second {
		t.Errorf("%d of 20 requests have waited in vain, want at most one at each gateway; all took %v", late, took)
	}
	redis.signal(syscall.SIGCONT)
	b.together()
	if resp, why := b.ask(0, "one", short); resp.StatusCode != http.StatusOK {
		t.Errorf("%d %q after the store goes on", resp.StatusCode, why)
	}
}

// A server that answers 5 ms late each way is too late for --limits-wait 5ms: gateways decide by
// their parts, under load too, and the store counts all the same. It is shown, and ends.
func TestSlow(t *testing.T) {
	harness.Beside(t, harness.Light)
	redis := start(t, harness.FreeAddress(t))
	f := harness.Forward(t, redis.addr)
	b := startBed(t, []key{{"one", "--requests-per-minute 60"}, {"two", "--requests-per-minute 60"}}, "--limits", "redis://"+f.Addr)
	harness.Eventually(t, "both count", func() bool { return harness.Metric(t, b.of[1].Admin, "weir_limits_gateways") == 2 })
	f.Delay(5 * time.Millisecond)
	for i := range b.of {
		harness.Eventually(t, "it is shown", func() bool {
			return strings.Contains(b.shown(i), " is slow since ") && strings.Contains(b.shown(i), "1/2 of each limit")
		})
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	admitted, began := 0, time.Now()
	for range 4 {
		all.Go(func() {
			got := b.wins("one", 40)
			mu.Lock()
			defer mu.Unlock()
			admitted += got
		})
	}
	all.Wait()
	if most := 61 + int(time.Since(began).Seconds()); admitted < 50 || admitted > most {
		t.Errorf("%d requests of 160 were admitted of 60 a minute, want 60 to %d", admitted, most)
	}
	harness.Eventually(t, "the store has them", func() bool {
		left, err := strconv.ParseFloat(redis.cli("hget", "weir:limits:one", "requests"), 64)
		return err == nil && left < 60-float64(admitted)+2+time.Since(began).Seconds()
	})
	if failed := harness.Metric(t, b.of[0].Admin, "weir_limits_failures_total"); failed != 0 {
		t.Errorf("%v exchanges have failed", failed)
	}
	f.Heal()
	b.together()
}
