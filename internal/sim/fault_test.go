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
		"deaf,times=1":                      {Kind: Deaf, Times: 1},
		"throttle,delay=3s":                 {Kind: Throttle, Delay: 3 * time.Second},
		"abort,after=2":                     {Kind: Abort, After: 2},
		"split,after=2,delay=5ms,at=7":      {Kind: Split, After: 2, Delay: 5 * time.Millisecond, At: 7},
		"drip,bytes=1,rate=0.5":             {Kind: Drip, Bytes: 1, Rate: 0.5},
		"pause,after=1,delay=2s":            {Kind: Pause, After: 1, Delay: 2 * time.Second},
		"wedge":                             {Kind: Wedge},
		"wedge,rank=0":                      {Kind: Wedge, One: true},
		"wedge,rank=3":                      {Kind: Wedge, One: true, Rank: 3},
		"drag,by=2.5":                       {Kind: Drag, By: 2.5},
		"restart,times=2":                   {Kind: Restart, Times: 2},
		"noprefill":                         {Kind: NoPrefill},
		"unmet,nth=2":                       {Kind: Unmet, Nth: 2},
		"misrank":                           {Kind: Misrank},
		"stuck,id=a":                        {Kind: Stuck, ID: "a"},
		"evict":                             {Kind: Evict},
		"die,stage=transfer,times=1":        {Kind: Die, Stage: "transfer", Times: 1},
		"mute":                              {Kind: Mute},
		"retract,every=20ms,times=3":        {Kind: Retract, Every: 20 * time.Millisecond, Times: 3},
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
		"":                 "refuse, deaf, unavailable",
		"kaput":            "truncate",
		"cut,after=x":      "after",
		"cut,afer=1":       "marker",
		"cut,rank=1":       "only wedge",
		"cut,stage=decode": "only die",
		"die":              "bootstrap, prefill, transfer, decode",
		"die,stage=x":      "bootstrap, prefill, transfer, decode",
		"wedge,rank=64":    "0 to 63",
		"wedge,times=2":    "leave times out",
		"wedge,rate=0.5":   "whole engine",
		"idle,by=2":        "only drag",
		"drag,by=0.5":      "1 to 1e6",
		"drag,by=NaN":      "1 to 1e6",
		"cut,rate=1.5":     "between 0 and 1",
		"cut,rate=NaN":     "between 0 and 1",
		"cut,delay=1s":     "it has no delay",
		"cut,at=3":         "only split",
		"slow,bytes=3":     "only drip",
		"cut,every=1s":     "only retract",
		"drip,bytes=-1":    "negative",
		"deaf,marker=a":    "before a request",
		"retract,nth=1":    "whole engine",
		"retract,after=1":  "counts no tokens",
		"cut,after=-1":     "negative",
		"miscount,after":   "after",
		"hang,after=3":     "counts no tokens",
		"refuse,id=a":      "before a request",
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
	f := set("refuse,nth=2", "deaf,nth=3", "hang,nth=1", "cut")
	for i, want := range []string{"", "refuse", "deaf", ""} {
		if x, hit := f.Connection(); hit != (want != "") || hit && x.String() != want+",nth="+string(rune('1'+i)) {
			t.Errorf("connection %d is struck by %v, %t", i+1, x, hit)
		}
	}
	if x, _ := f.Request(Target{}); x.Kind != Hang {
		t.Errorf("the first match must strike, got %v", x)
	}
	if x, _ := f.Request(Target{}); x.Kind != Cut {
		t.Errorf("the next match must strike, got %v", x)
	}
	if got := f.Report(); len(got) != 4 || got[0].Times != 1 || got[1].Times != 1 || got[2].Times != 1 || got[3].Times != 1 || got[3].Fault != "cut" {
		t.Errorf("report %+v", got)
	}
	if f.Storm() != 0 {
		t.Error("a storm that nobody asked for")
	}
	f = set("retract,times=2")
	if _, hit := f.Request(Target{}); hit || f.Storm() != time.Second {
		t.Errorf("a storm every %v, and it strikes requests: %t", f.Storm(), hit)
	}
	if f.Stormed(); f.Storm() != time.Second {
		t.Error("a storm must come twice")
	}
	if f.Stormed(); f.Storm() != 0 {
		t.Error("a storm must come twice only")
	}
	for kind, want := range map[string]Fault{
		"slow": {Delay: time.Second}, "throttle": {Delay: time.Second}, "pause": {Delay: time.Second},
		"drip": {Delay: 10 * time.Millisecond, Bytes: 16}, "split": {Delay: time.Millisecond},
	} {
		if x, _ := set(kind).Request(Target{}); x.Delay != want.Delay || want.Bytes > 0 && x.Bytes != want.Bytes {
			t.Errorf("%s without settings: %+v", kind, x)
		}
	}
}
