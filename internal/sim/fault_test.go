package sim

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]Fault{
		"refuse":                            {Kind: Refuse},
		"cut,after=20,rate=0.01":            {Kind: Cut, After: 20, Rate: 0.01},
		"slow,delay=50ms,nth=3":             {Kind: Slow, Delay: 50 * time.Millisecond, Nth: 3},
		"miscount,id=conv-7,times=2":        {Kind: Miscount, ID: "conv-7", Times: 2},
		"stall,after=1,marker=please stall": {Kind: Stall, After: 1, Marker: "please stall"},
	} {
		got, err := ParseFault(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("%s prints as %s", text, got)
		}
	}
	for text, mention := range map[string]string{
		"":               "refuse, unavailable",
		"kaput":          "truncate",
		"cut,after=x":    "after",
		"cut,afer=1":     "marker",
		"cut,rate=1.5":   "between 0 and 1",
		"cut,rate=NaN":   "between 0 and 1",
		"cut,delay=1s":   "only slow",
		"cut,after=-1":   "negative",
		"miscount,after": "after",
		"hang,after=3":   "counts no tokens",
		"refuse,id=a":    "before a request",
	} {
		if _, err := ParseFault(text); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("cut,after=20,rate=0.01")
	f.Add("slow,delay=1h2m,marker=a=b,,")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ParseFault(text)
		if err != nil {
			return
		}
		again, err := ParseFault(x.String())
		if err != nil || again != x {
			t.Fatalf("%q gives %+v, which prints as %q and gives %+v, %v", text, x, x, again, err)
		}
	})
}

func TestFaultsAim(t *testing.T) {
	set := func(text ...string) *Faults {
		var list []Fault
		for _, s := range text {
			f, err := ParseFault(s)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, f)
		}
		f, err := NewFaults(list)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	hits := func(f *Faults, id, prompt string, n int) (hit int) {
		for range n {
			if _, ok := f.Request(Target{ID: id, Prompt: func() []byte { return []byte(prompt) }}); ok {
				hit++
			}
		}
		return hit
	}
	if n := hits(set("cut"), "a", "", 10); n != 10 {
		t.Errorf("no selector: %d of 10", n)
	}
	if n := hits(set("cut,nth=4"), "a", "", 10); n != 1 {
		t.Errorf("nth: %d of 10", n)
	}
	if n := hits(set("cut,times=3"), "a", "", 10); n != 3 {
		t.Errorf("times: %d of 10", n)
	}
	if n, m := hits(set("cut,id=conv-1"), "x-conv-1", "", 2), hits(set("cut,id=conv-1"), "conv-2", "", 2); n != 2 || m != 0 {
		t.Errorf("id: %d of 2, and %d of 0", n, m)
	}
	if n, m := hits(set("cut,marker=boom"), "", "a boom b", 2), hits(set("cut,marker=boom"), "", "quiet", 2); n != 2 || m != 0 {
		t.Errorf("marker: %d of 2, and %d of 0", n, m)
	}
	if n := float64(hits(set("cut,rate=0.1"), "", "", 100000)); math.Abs(n-10000) > 500 {
		t.Errorf("rate: %v of 10000", n)
	}
	f := set("refuse,nth=2", "hang,nth=1", "cut")
	if f.Connection() || !f.Connection() || f.Connection() {
		t.Error("refuse must strike the second connection only")
	}
	if x, _ := f.Request(Target{}); x.Kind != Hang {
		t.Errorf("the first match must strike, got %v", x)
	}
	if x, _ := f.Request(Target{}); x.Kind != Cut {
		t.Errorf("the next match must strike, got %v", x)
	}
	if got := f.Report(); len(got) != 3 || got[0].Times != 1 || got[1].Times != 1 || got[2].Times != 1 || got[2].Fault != "cut" {
		t.Errorf("report %+v", got)
	}
	if x, _ := set("slow").Request(Target{}); x.Delay != time.Second {
		t.Errorf("slow without a delay: %v", x.Delay)
	}
}
