package simserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/sim"
	"weir/internal/sim/simserver/flags"
)

// stamps are members of answers that differ from one to the next.
var stamps = map[string]bool{
	"id": true, "created": true, "created_at": true, "completed_at": true, "request_id": true, "rid": true, "item_id": true,
	"e2e_latency": true, "queue_time": true, "cached_tokens": true, "cached_tokens_details": true, "prompt_tokens_details": true, "input_tokens_details": true,
	"request_received_ts": true, "request_sent_to_scheduler_ts": true, "response_sent_to_client_ts": true, "decode_finished_ts": true, "forward_entry_time": true,
	"prefill_launch_delay": true, "prefill_launch_latency": true, "request_finished_ts": true, "inference_time": true, "decode_throughput": true, "prefill_finished_ts": true,
	"scheduler_recv_ts": true, "api_server_dispatch_finish_ts": true, "cache_read_input_tokens": true, "dp_rank": true,
}

// unstamped decodes an answer without its stamps.
func unstamped(t *testing.T, body string) any {
	var strip func(v any) any
	strip = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for name, member := range v {
				if v[name] = strip(member); stamps[name] {
					delete(v, name)
				}
			}
		case []any:
			for i := range v {
				v[i] = strip(v[i])
			}
		}
		return v
	}
	var all []any
	for line := range strings.Lines(body) {
		data := strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if data == "" || data == "[DONE]" || strings.HasPrefix(data, "event: ") {
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		all = append(all, strip(v))
	}
	return all
}

// with returns a body with members of another, or of the object in one of its members, in place of
// its own. A member that is null in the other is left out.
func with(t *testing.T, base, members, in string) string {
	var body, more map[string]json.RawMessage
	for text, into := range map[string]*map[string]json.RawMessage{base: &body, "{" + members + "}": &more} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	to := body
	if in != "" {
		to = map[string]json.RawMessage{}
		if err := json.Unmarshal(body[in], &to); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range more {
		if to[name] = value; string(value) == "null" {
			delete(to, name)
		}
	}
	if in != "" {
		nested, err := json.Marshal(to)
		if err != nil {
			t.Fatal(err)
		}
		body[in] = nested
	}
	out, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Each field of each request has an effect, is refused, or has a reason why the real server's
// answer has none of it: testdata/fields.txt has a row for each field of the real servers' schemas
// (interop/parsers compares the names).
func TestFields(t *testing.T) {
	table, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{
			Sim: sim.Options{ContextLength: 4096, MaxRunning: 8, LoRAs: []string{"adapter"}, DPSize: 2}, VLLM: flags.VLLM{ScaleOut: true},
			SGLang: flags.SGLang{Deterministic: true, CacheReport: false},
		})
		urls := map[string]string{"vllm": b.vllm, "sglang": b.sglang, "openai": b.openai}
		post := func(url, body string) (status int, answer string) {
			resp, err := b.client.Post(url, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(raw)
		}
		var url, in, base, title string
		var asItIs any
		rows := 0
		for line := range strings.Lines(string(table)) {
			line = strings.TrimSuffix(line, "\n")
			if heading, ok := strings.CutPrefix(line, "== "); ok {
				words := strings.Fields(heading)
				path, nested, _ := strings.Cut(words[1], "#")
				title, url, in, base = heading, urls[words[0]]+path, nested, ""
				continue
			}
			if line == "" || line[0] == '#' {
				continue
			}
			if base == "" {
				base = line
				status, answer := post(url, base)
				if status != http.StatusOK {
					t.Fatalf("%s: %s has status %d: %s", title, base, status, answer)
				}
				asItIs = unstamped(t, answer)
				continue
			}
			members, want, ok := strings.Cut(line, " | ")
			name, rest, _ := strings.Cut(members, ": ")
			if !ok || rest == "" {
				t.Fatalf("%s: %q is no row", title, line)
			}
			rows++
			status, answer := post(url, with(t, base, strconv.Quote(name)+": "+rest, in))
			word, text, _ := strings.Cut(want, " ")
			got := ""
			switch code, err := strconv.Atoi(word); {
			case err == nil && status == code && strings.Contains(answer, text):
			case status != http.StatusOK || err == nil:
				got = fmt.Sprintf("status %d", status)
			case word == "shows" && strings.Contains(answer, text):
			case word == "differs" && !reflect.DeepEqual(unstamped(t, answer), asItIs):
			case word == "same:" && text != "" && reflect.DeepEqual(unstamped(t, answer), asItIs):
			default:
				got = fmt.Sprintf("another answer than %v", asItIs)
				if reflect.DeepEqual(unstamped(t, answer), asItIs) {
					got = "the same answer"
				}
			}
			if got != "" {
				t.Errorf("%s: %s: %s: %.300s", title, line, got, answer)
			}
		}
		if rows < 300 {
			t.Errorf("%d rows", rows)
		}
		time.Sleep(time.Second) // whatever was begun ends
	})
}
