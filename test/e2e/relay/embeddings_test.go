package relay

import (
	"bytes"
	"encoding/base64"
	le "encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

type embeddings struct {
	Data []struct {
		Index     int
		Embedding json.RawMessage
	}
	Usage struct {
		PromptTokens int `json:"prompt_tokens"`
	}
}

// vector reads an embedding in either encoding.
func vector(t *testing.T, raw json.RawMessage) (v []float64) {
	t.Helper()
	if raw[0] == '[' {
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	for ; len(b) >= 4; b = b[4:] {
		v = append(v, float64(math.Float32frombits(le.LittleEndian.Uint32(b))))
	}
	return v
}

// Vectors, ranks and scores come through a relay as the engine gives them, under
// an alias too; tokens are counted, and an engine that refuses connections is
// passed over.
func TestRelayedEmbeddings(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, wire := range []string{"openai", "vllm", "sglang"} {
		engine, _ := harness.StartWire(t, wire)
		bad, badAdmin := harness.StartWire(t, wire)
		g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", "openai="+engine+",model=embed", "--engine", "openai="+bad+",model=embed")
		harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
		if a := harness.Post(t, badAdmin+"/admin/faults", `{"faults":["refuse"]}`); a.Status != 200 {
			t.Fatalf("faults: %d %s", a.Status, a.Body)
		}
		tokens := 0
		ask := func(path, fields string, into any) {
			t.Helper()
			id := "r" + strings.ReplaceAll(path, "/", "-")
			through := harness.Post(t, g.URL+path, `{"model":"embed",`+fields+`}`, "X-Request-Id", id)
			if bytes.Contains(through.Body, []byte(id)) {
				t.Errorf("%s %s: the engine was told the caller's id: %s", wire, path, through.Body)
			}
			own := ownID.FindString(string(through.Body)) // which is in an answer's id
			direct := harness.Post(t, engine+path, `{"model":"weir-sim",`+fields+`}`, "X-Request-Id", own)
			if through.Status != 200 || !equalButTime(through.Body, direct.Body) {
				t.Fatalf("%s %s: %d %s\nthe engine itself: %d %s", wire, path, through.Status, through.Body, direct.Status, direct.Body)
			}
			if err := json.Unmarshal(through.Body, into); err != nil {
				t.Fatal(err)
			}
			if e, ok := into.(*embeddings); ok {
				tokens += e.Usage.PromptTokens
			}
		}
		var floats, packed, ids, short embeddings
		ask("/v1/embeddings", `"input":["low dams","weirs"],"encoding_format":"float"`, &floats)
		ask("/v1/embeddings", `"input":["low dams","weirs"],"encoding_format":"base64"`, &packed)
		ask("/v1/embeddings", `"input":[[1,2,3],[4]],"dimensions":8`, &ids)
		ask("/v1/embeddings", `"input":"low dams","dimensions":8`, &short)
		if len(floats.Data) != 2 || len(ids.Data) != 2 || ids.Usage.PromptTokens != 4 || len(vector(t, short.Data[0].Embedding)) != 8 {
			t.Errorf("%s: %+v, %+v, %+v", wire, floats, ids, short)
		}
		for i := range floats.Data {
			v := vector(t, floats.Data[i].Embedding)
			var square float64
			for _, x := range v {
				square += x * x
			}
			if !slices.Equal(v, vector(t, packed.Data[i].Embedding)) || math.Abs(square-1) > 1e-5 {
				t.Errorf("%s: %v is not %s, or has length %g", wire, v, packed.Data[i].Embedding, math.Sqrt(square))
			}
		}
		a, b := harness.Post(t, g.URL+"/v1/embeddings", `{"model":"embed","input":{}}`), harness.Post(t, engine+"/v1/embeddings", `{"model":"weir-sim","input":{}}`)
		if a.Status != 400 || string(a.Body) != string(b.Body) {
			t.Errorf("%s: refused with %d %s, by the engine itself %d %s", wire, a.Status, a.Body, b.Status, b.Body)
		}
		if wire != "openai" {
			rerank(t, wire, ask)
		}
		g.Balanced()
		g.Interrupt()
		recorded := 0
		for _, r := range g.Records() {
			if r.RequestID == "r-v1-embeddings" {
				recorded += r.PromptTokens
			}
		}
		if recorded != tokens {
			t.Errorf("%s: the timeline has %d tokens, the answers %d", wire, recorded, tokens)
		}
	}
}

// ownID is weir's own id of a request.
var ownID = regexp.MustCompile("req-[0-9a-f]{28}(-2)?")

// equalButTime compares answers that may say when they were made.
func equalButTime(a, b []byte) bool {
	plain := func(body []byte) string {
		var m any
		_ = json.Unmarshal(body, &m)
		if m, ok := m.(map[string]any); ok {
			delete(m, "created")
		}
		return fmt.Sprint(m)
	}
	return plain(a) == plain(b)
}

// rerank checks that ranks are those of the vectors.
func rerank(t *testing.T, wire string, ask func(path, fields string, into any)) {
	t.Helper()
	documents := []string{"a low dam", "a river", "low water", "bread"}
	texts, err := json.Marshal(append([]string{"dams"}, documents...))
	if err != nil {
		t.Fatal(err)
	}
	var e embeddings
	ask("/v1/embeddings", `"input":`+string(texts), &e)
	score := func(i int) float64 {
		var dot float64
		for k, q := range vector(t, e.Data[0].Embedding) {
			dot += q * vector(t, e.Data[1+i].Embedding)[k]
		}
		return (1 + dot) / 2
	}
	type result struct {
		Index     int
		Score     float64
		Relevance float64 `json:"relevance_score"`
	}
	var results []result
	fields := `"query":"dams","top_n":3,"documents":` + strings.Replace(string(texts), `"dams",`, "", 1)
	if wire == "sglang" {
		ask("/v1/rerank", fields, &results)
	} else {
		var answer struct{ Results []result }
		ask("/v1/rerank", fields, &answer)
		results = answer.Results
		var scores struct{ Data []result }
		ask("/v1/score", `"text_1":"dams","text_2":`+strings.Replace(string(texts), `"dams",`, "", 1), &scores)
		for i, r := range scores.Data {
			if r.Index != i || math.Abs(r.Score-score(i)) > 1e-9 {
				t.Errorf("score %d is %g, want %g", i, r.Score, score(i))
			}
		}
	}
	last := math.Inf(1)
	for _, r := range results {
		got := r.Score + r.Relevance // it has one of the two names
		if math.Abs(got-score(r.Index)) > 1e-9 || got > last {
			t.Errorf("%s: document %d has %g, want %g, at most %g", wire, r.Index, got, score(r.Index), last)
		}
		last = got
	}
	if len(results) != 3 {
		t.Errorf("%s: %d results", wire, len(results))
	}
}
