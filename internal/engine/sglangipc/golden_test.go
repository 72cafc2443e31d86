package sglangipc

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
)

// golden has the manifests of a launcher, and messages, as releases of SGLang encode them
// themselves (interop/sglang/golden.py).
type golden struct {
	Manifest json.RawMessage `json:"word"`
	Messages map[string][]byte
}

func readGolden(t testing.TB) map[string]golden {
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]golden
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 || all[newest.String()].Manifest == nil || all[oldest.String()].Manifest == nil {
		t.Fatalf("%d releases", len(all))
	}
	return all
}

// goldenCodec returns a release's codec.
func goldenCodec(t testing.TB, g golden) (*manifest, *codec) {
	h, c, err := parseManifest(g.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

// whole is the request that golden.py makes.
func whole() *infer.Request {
	return &infer.Request{
		ID: "419f8673ad28e099000000000001", Model: "lora", Prompt: []uint32{1, 200, 70000}, MaxTokens: 100, MinTokens: 3, Priority: ptr(int64(-7)), Logprobs: ptr(2), StopIDs: []uint32{70000}, IgnoreEOS: true,
		Sampling: infer.Sampling{Temperature: new(float64), TopP: ptr(0.5), MinP: ptr(0.25), PresencePenalty: ptr(0.5), FrequencyPenalty: ptr(-0.5),
			RepetitionPenalty: ptr(1.5), LogitBias: []infer.Bias{{ID: 7, Value: -1.5}}, Seed: ptr(int64(12345678901))},
		Guide: &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"object"}`},
	}
}

func ptr[T any](v T) *T { return &v }

// TestGolden reads what each release encodes, and writes what it would.
func TestGolden(t *testing.T) {
	for release, g := range readGolden(t) {
		t.Run(release, func(t *testing.T) {
			h, c := goldenCodec(t, g)
			if warning, err := h.judge(false); err != nil || warning != "" {
				t.Errorf("%q, %v", warning, err)
			}
			if h.Served != "served" || h.ContextLength != 4096 || h.MaxInput != 4085 || h.Vocab != 128000 || h.Ranks != 1 || h.LoRA["lora"] != "adapter" {
				t.Errorf("%+v", h)
			}
			req := whole()
			if err := h.check(req, &engine.Additions{}); err != nil {
				t.Fatal(err)
			}
			for name, wrote := range map[string][]byte{
				"request": c.appendRequest(nil, req, &engine.Additions{}, h.LoRA[req.Model], -1), "abort": c.appendAbort(nil, req.ID), "abort_all": c.appendAbort(nil, ""),
			} {
				if !bytes.Equal(wrote, g.Messages[name]) {
					t.Errorf("%s:\n%x, want\n%x", name, wrote, g.Messages[name])
				}
			}
			d := batch{codec: c}
			read := func(name string, want kind) {
				t.Helper()
				if err := d.decode(g.Messages[name]); err != nil || d.kind != want {
					t.Errorf("%s: kind %v, %v", name, d.kind, err)
				}
			}
			read("step", outputs)
			type line struct {
				id                    string
				ids                   []uint32
				how                   finishKind
				prompt, count, cached int
			}
			forty := make([]uint32, 40)
			for i := range forty {
				forty[i] = uint32(i)
			}
			for i, want := range []line{
				{"running-000000", []uint32{5}, running, 9, 1, 4}, {"stopped-000000", []uint32{200, 70000}, stopped, 200, 2, 0},
				{"full-000000000", forty, full, 70000, 300, 300}, {"aborted-000000", nil, aborted, 1, 0, 0},
				{"overflow-00000", []uint32{1}, stopped, 2, 1, 0}, {"several-000000", []uint32{7, 8}, stopped, 3, 2, 0},
			} {
				o := d.outputs[i]
				if string(o.id) != want.id || !slices.Equal(d.ids[o.from:o.to], want.ids) || o.end.how != want.how || o.prompt != want.prompt || o.count != want.count || o.cached != want.cached {
					t.Errorf("%+v, want %+v", o, want)
				}
			}
			if o := d.outputs[1].end; !o.isID || o.matched != 70000 {
				t.Errorf("%+v", o)
			}
			if o := d.outputs[2].end; o.length != 300 {
				t.Errorf("%+v", o)
			}
			if o := d.outputs[3].end; o.status != 503 || string(o.message) != "why" {
				t.Errorf("%+v", o)
			}
			if o := d.outputs[4].end; o.isID || string(o.word) != "NaN happened" {
				t.Errorf("%+v", o)
			}
			if o := d.outputs[5].end; !o.isID || o.matched != 8 {
				t.Errorf("%+v", o)
			}
			var l infer.Logprobs
			if err := readScores(&d.outputs[1].scores, []uint32{200, 70000}, 2, &l); err != nil || !slices.Equal(l.Own, []float32{-0.25, -0.5}) ||
				!slices.Equal(l.TopIDs, []uint32{200, 1, 3, 70000}) || !slices.Equal(l.Top, []float32{-0.25, -1.5, -0.125, float32(math.Inf(-1))}) {
				t.Errorf("%+v, %v", l, err)
			}
			read("idle", outputs)
			if len(d.outputs) != 0 {
				t.Errorf("%d outputs of an idle step", len(d.outputs))
			}
			read("echo", echo)
			if string(d.id) != "waiting-000000" || d.end.how != aborted || d.end.status != 503 {
				t.Errorf("%q, %+v", d.id, d.end)
			}
			read("plain_echo", echo)
			if d.end.how != aborted || d.end.status != 0 {
				t.Errorf("%+v", d.end)
			}
			read("answer", answer)
			if d.call != 0x1f {
				t.Errorf("call %x", d.call)
			}
			read("state", state)
			if d.says != (about{maxRunning: 48}) {
				t.Errorf("%+v", d.says)
			}
			for _, name := range []string{"configured", "health", "frozen"} {
				read(name, other)
			}
		})
	}
}

// The manifest that schedtest has is the one that a launcher writes.
func TestWordIsALaunchers(t *testing.T) {
	var want, got any
	if err := errors.Join(json.Unmarshal(readGolden(t)[newest.String()].Manifest, &want), json.Unmarshal(schedtest.Manifest(nil), &got)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("schedtest/manifest.json is not the manifest in golden.json for %v", newest)
	}
}
