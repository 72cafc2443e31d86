//go:build interop_engines

package real

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestVLLMIsolation has vLLM as released divide its prefix cache by the salt that weir sends it, over
// each of its wires: within a salt a prompt is found again, and under another salt nothing of
// it. Without keys the callers' own salts, which divide further, stand for tenants.
func TestVLLMIsolation(t *testing.T) {
	port, handshake := freePort(t), freePort(t)
	url := "http://127.0.0.1:" + port
	server := vllm(t, nil, "--port", port, "--enable-scale-out", "--enable-prompt-tokens-details")
	headless := vllm(t, nil, "--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake)
	ways := map[string]gateway{}
	for name, engine := range map[string]string{"relayed": "openai=" + url, "ids": "vllm=" + url, "core": "vllm-core=tcp://127.0.0.1:" + handshake + ",model=tiny"} {
		ways[name] = serve(t, "--model", "tiny="+folder, "--engine", engine, "--isolation", "tenant")
	}
	for _, g := range ways {
		g.ready(true, server, headless)
	}
	for name, g := range ways {
		text := strings.Repeat("the "+name+" secret is kept in the cellar of the house. ", 20)
		ask := func(own string) int {
			t.Helper()
			a := harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"tiny","max_tokens":1,"temperature":0,"prompt":%q,"cache_salt":%q}`, text, own))
			var said struct {
				Usage struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal(a.Body, &said); err != nil || a.Status != 200 {
				t.Fatalf("%s: %d %s", name, a.Status, a.Body)
			}
			return said.Usage.Details.Cached
		}
		first, again, other, back := ask("a"), ask("a"), ask("b"), ask("a")
		t.Logf("%s: cached tokens %d, %d by the same, %d by another, %d by the first", name, first, again, other, back)
		if first != 0 || again == 0 || other != 0 || back != again {
			t.Errorf("%s: cached tokens %d, %d, %d, %d; want none, some, none, as many as before", name, first, again, other, back)
		}
	}
}
