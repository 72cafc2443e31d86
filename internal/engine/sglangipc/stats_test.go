package sglangipc

import (
	"bytes"
	"encoding/base64"
	"slices"
	"testing"

	"weir/internal/engine/sglangipc/schedtest"
)

// Lists of SchedulerReqTimeStats as SGLang 0.5.23 and Python 3.11 pickle them: of two requests with
// --enable-metrics, the second of which is still in its prefill; without the flag; and the second
// alone with its stamps.
var pickles = map[string]string{
	"on":    "gASVggEAAAAAAABdlCiMJ3NnbGFuZy5zcnQub2JzZXJ2YWJpbGl0eS5yZXFfdGltZV9zdGF0c5SMFVNjaGVkdWxlclJlcVRpbWVTdGF0c5STlCmBlH2UKIwPaGFzX3RpbWluZ19kYXRhlIiMFXdhaXRfcXVldWVfZW50cnlfdGltZZRHQI9EAAAAAACMEmZvcndhcmRfZW50cnlfdGltZZRHQI9GAAAAAACMFXByZWZpbGxfZmluaXNoZWRfdGltZZRHQI9IAAAAAACMEHF1ZXVlX2R1cmF0aW9uX3OURwAAAAAAAAAAjBdzdG9yYWdlX3ByZWZldGNoX3dhaXRfc5ROjBZzdG9yYWdlX3N0YWdpbmdfd2FpdF9zlE6MF2RpZmZfcmVhbHRpbWVfbW9ub3RvbmljlEdB2sM2B0jh8nViaAMpgZR9lChoBohoB0dAj0wAAAAAAGgIR0CPTgAAAAAAaAlHAAAAAAAAAABoCkcAAAAAAAAAAGgLTmgMTmgNR0HawzYHSOHydWJlLg==",
	"off":   "gASVVwAAAAAAAABdlCiMJ3NnbGFuZy5zcnQub2JzZXJ2YWJpbGl0eS5yZXFfdGltZV9zdGF0c5SMFVNjaGVkdWxlclJlcVRpbWVTdGF0c5STlCmBlH2UYmgDKYGUfZRiZS4=",
	"mixed": "gASVQAEAAAAAAABdlCiMJ3NnbGFuZy5zcnQub2JzZXJ2YWJpbGl0eS5yZXFfdGltZV9zdGF0c5SMFVNjaGVkdWxlclJlcVRpbWVTdGF0c5STlCmBlH2UYmgDKYGUfZQojA9oYXNfdGltaW5nX2RhdGGUiIwVd2FpdF9xdWV1ZV9lbnRyeV90aW1llEdAj0wAAAAAAIwSZm9yd2FyZF9lbnRyeV90aW1llEdAj04AAAAAAIwVcHJlZmlsbF9maW5pc2hlZF90aW1llEcAAAAAAAAAAIwQcXVldWVfZHVyYXRpb25fc5RHAAAAAAAAAACMF3N0b3JhZ2VfcHJlZmV0Y2hfd2FpdF9zlE6MFnN0b3JhZ2Vfc3RhZ2luZ193YWl0X3OUTowXZGlmZl9yZWFsdGltZV9tb25vdG9uaWOUR0HawzYHSOHydWJlLg==",
	"empty": "gARdlC4=",
}

func unpickled(t testing.TB, name string) []byte {
	b, err := base64.StdEncoding.DecodeString(pickles[name])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readTimes(b []byte, n int) ([]times, bool) {
	outs := make([]output, n)
	ok := readStats(b, outs)
	all := make([]times, n)
	for i := range outs {
		all[i] = outs[i].times
	}
	return all, ok
}

func TestStats(t *testing.T) {
	for name, want := range map[string][]times{
		"on":    {{1000.5, 1000.75, 1001}, {1001.5, 1001.75, 0}},
		"off":   {{}, {}},
		"mixed": {{}, {1001.5, 1001.75, 0}},
		"empty": {},
	} {
		b := unpickled(t, name)
		if got, ok := readTimes(b, len(want)); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", name, got, ok, want)
		}
		for n := range 4 {
			if got, ok := readTimes(b, n); n != len(want) && (ok || slices.ContainsFunc(got, func(at times) bool { return at != times{} })) {
				t.Errorf("%s for %d requests: %v %v", name, n, got, ok)
			}
		}
		for cut := range b {
			if got, ok := readTimes(b[:cut], len(want)); ok || slices.ContainsFunc(got, func(at times) bool { return at != times{} }) {
				t.Errorf("%s, cut at %d: %v", name, cut, got)
			}
		}
	}
	// The scheduler that tests play writes what is read.
	var outs []schedtest.Output
	for i := range 300 { // names are far back in the memo
		outs = append(outs, schedtest.Output{Queued: float64(i), Forwarded: float64(i) + 0.25, Prefilled: float64(i) + 0.5})
	}
	got, ok := readTimes(schedtest.Stats(outs), len(outs))
	if !ok || got[299] != (times{299, 299.25, 299.5}) || got[1] != (times{1, 1.25, 1.5}) {
		t.Errorf("%v %v", got[299], ok)
	}
	if want := unpickled(t, "on"); !bytes.Equal(schedtest.Stats([]schedtest.Output{{Queued: 1000.5, Forwarded: 1000.75, Prefilled: 1001}, {Queued: 1001.5, Forwarded: 1001.75}}), want) {
		t.Error("the scheduler that tests play pickles otherwise than SGLang")
	}
}

func FuzzStats(f *testing.F) {
	for name := range pickles {
		f.Add(unpickled(f, name), 2)
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		readTimes(b, min(max(n, 0), 8))
	})
}

func BenchmarkStats(b *testing.B) {
	var played []schedtest.Output
	for i := range 256 {
		played = append(played, schedtest.Output{Queued: float64(i), Forwarded: 1, Prefilled: 2})
	}
	data, outs := schedtest.Stats(played), make([]output, len(played))
	b.ReportAllocs()
	for b.Loop() {
		if !readStats(data, outs) {
			b.Fatal("not read")
		}
	}
}
