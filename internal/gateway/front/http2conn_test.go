package front

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
)

// The heads of frames are found however the bytes are cut.
func TestFrameScan(t *testing.T) {
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	want := ""
	for i := range uint32(20) {
		data := make([]byte, int(i)*7%40)
		if err := f.WriteData(2*i+1, false, data); err != nil {
			t.Fatal(err)
		}
		want += fmt.Sprint(http2.FrameData, 2*i+1, len(data), " ")
	}
	all := out.Bytes()
	for cut := 1; cut <= len(all); cut++ {
		var s frameScan
		got := ""
		for at := 0; at < len(all); at += cut {
			for rest := all[at:min(at+cut, len(all))]; len(rest) > 0; {
				var ended bool
				if rest, ended = s.next(rest); ended {
					got += fmt.Sprint(s.kind(), s.stream(), s.length(), " ")
				}
			}
		}
		if got != want || !s.between() {
			t.Fatalf("cut at %d: %s, between %v", cut, got, s.between())
		}
	}
}
