//go:build interop

package clients

import (
	"fmt"
	"os/exec"
	"strconv"
	"testing"

	"weir/test/e2e/harness"
)

// An engine is killed in the midst of a stream's reasoning, of its text, and of its call's
// arguments: the official clients read what they read without that, and without continuation
// an error.
func TestContinuation(t *testing.T) {
	for check, continuation := range map[string]string{"chat_continues": "on", "responses_continue": "on", "messages_continue": "on", "without": "off"} {
		t.Run(check, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			serve := []string{"serve", "--policy", "round-robin", "--continuation", continuation}
			suite := []string{"continuation_python.py", "--only", check, "--idle-metric", "weir_requests_in_flight"}
			for i := range 4 {
				s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "5ms")
				serve = append(serve, "--engine", fmt.Sprint(s.Spec([]string{"plane", "sglang"}[i%2]), ",name=e", i))
				suite = append(suite, "--engine-state", s.Admin+"/admin/state", "--engine-pid", strconv.Itoa(s.Cmd.Process.Pid))
			}
			g := harness.StartGateway(t, serve...)
			defer g.Interrupt()
			harness.Eventually(t, "all well", func() bool { return harness.Metric(t, g.Admin, "weir_engine_state", `state="up"`) == 4 })
			suite = append(suite, "--base-url", g.URL, "--admin-url", g.Admin)
			harness.Checks(t, 1, exec.Command(harness.Python(t), suite...))
		})
	}
}
