package gotext

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, most := range []int{1000, 1 << 20} {
		text, err := Text(100_000, most, ".go")
		if err != nil || len(text) > 100_000 || len(text) < 100_000-utf8.UTFMax || !utf8.ValidString(text) {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
	if _, err := Text(1, 1, ".none"); err == nil || !strings.Contains(err.Error(), ".none") {
		t.Errorf("%v, want an error that names the extension", err)
	}
	if text, err := Text(1<<40, 1, ".go"); err == nil {
		t.Errorf("%d bytes of a terabyte", len(text))
	}
}

// No two texts have 4 KB in common, which weir would find in its cache.
func TestDraw(t *testing.T) {
	all, err := ReadParagraphs()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	a, b := all.Draw(r, 160<<10), all.Draw(r, 160<<10)
	for i := 0; i+4096 <= len(a); i += 512 {
		if strings.Contains(b, a[i:i+4096]) {
			t.Fatalf("the 4 KB at %d are in both", i)
		}
	}
}
