package workload

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the sample trace in docs/samples")

const sampleFile = "../../docs/samples/synthetic-chat.jsonl"

// TestSample holds that the committed sample is what its generator makes, and
// that it reads as a trace whose prompts grow and share.
func TestSample(t *testing.T) {
	want := sample()
	if *rewrite {
		if err := os.WriteFile(sampleFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(sampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s is not what its generator makes; -rewrite makes it so", sampleFile)
	}
	rs := trace(t, string(got), "", Options{})
	blocks := map[uint64]int{}
	var all, again int
	for _, r := range rs {
		for _, p := range r.Parts {
			all += p.Tokens
			if blocks[p.Key] > 0 {
				again += p.Tokens
			}
			blocks[p.Key]++
		}
	}
	if len(rs) < 150 || len(rs) > 600 || len(got) > 64<<10 || again < all/2 {
		t.Errorf("%d requests in %d bytes; %d of %d prompt tokens were there before", len(rs), len(got), again, all)
	}
}

// sample makes a trace in the form of Mooncake's. It is drawn, not recorded:
// 60 conversations begin in five minutes, each with one of three system
// prompts, and every turn's prompt holds all turns before it and their answers.
func sample() []byte {
	type row struct {
		Timestamp int64    `json:"timestamp"`
		Input     int      `json:"input_length"`
		Output    int      `json:"output_length"`
		Hashes    []uint64 `json:"hash_ids"`
		Synthetic bool     `json:"synthetic"`
	}
	const block = 512
	rng := rand.New(rand.NewPCG(1, 2))
	system := []int{4 * block, 7*block + 300, 11*block + 40}
	// A block's id stands for all tokens from the beginning to its end: those of
	// a system prompt are its own, the rest belong to one conversation, and a
	// block that is not full yet to one turn.
	type content struct{ owner, index, turn int }
	ids := map[content]uint64{}
	id := func(c content) uint64 {
		if _, ok := ids[c]; !ok {
			ids[c] = uint64(len(ids))
		}
		return ids[c]
	}
	var rows []row
	begin := 0.0
	for c := range 60 {
		begin += rng.ExpFloat64() * 5
		at, prompt := begin, system[rng.IntN(3)]
		owner := -1 - slices.IndexFunc(system, func(n int) bool { return n == prompt })
		shared := prompt / block
		for turn := range 1 + rng.IntN(8) {
			prompt += 1 + int(rng.ExpFloat64()*150)
			output := 1 + int(rng.ExpFloat64()*220)
			var hashes []uint64
			for i := 0; i*block < prompt; i++ {
				switch {
				case i < shared:
					hashes = append(hashes, id(content{owner, i, 0}))
				case (i+1)*block <= prompt:
					hashes = append(hashes, id(content{c, i, 0}))
				default:
					hashes = append(hashes, id(content{c, i, 1 + turn}))
				}
			}
			rows = append(rows, row{int64(at * 1e3), prompt, output, hashes, true})
			prompt += output
			at += 3 + rng.ExpFloat64()*15 // the answer is read, and the next question typed
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return int(a.Timestamp - b.Timestamp) })
	// Ids in the order of their first use, as in a recorded trace.
	order := map[uint64]uint64{}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, r := range rows {
		r.Timestamp -= rows[0].Timestamp
		for i, h := range r.Hashes {
			if _, ok := order[h]; !ok {
				order[h] = uint64(len(order))
			}
			r.Hashes[i] = order[h]
		}
		if err := e.Encode(r); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}
