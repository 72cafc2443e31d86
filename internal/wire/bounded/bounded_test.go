package bounded

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	errLong := errors.New("too long")
	for _, one := range []bool{false, true} {
		for size := range 12 {
			text := strings.Repeat("x", size)
			var under io.Reader = strings.NewReader(text)
			if one {
				under = iotest.OneByteReader(under)
			}
			got, err := io.ReadAll(&Reader{R: under, Left: 8, Err: errLong})
			if size <= 8 && (err != nil || string(got) != text) {
				t.Errorf("%d bytes: got %q, %v", size, got, err)
			}
			if size > 8 && !errors.Is(err, errLong) {
				t.Errorf("%d bytes: got %v, want %v", size, err, errLong)
			}
		}
	}
}

// A stream may be read in parts, each with a bound of its own, and a failure stays.
func TestReaderOfParts(t *testing.T) {
	errLong := errors.New("too long")
	r := &Reader{R: strings.NewReader("abcdefghij"), Err: errLong}
	part := make([]byte, 3)
	for _, want := range []string{"abc", "def"} {
		r.Left = 3
		if n, err := io.ReadFull(r, part); err != nil || string(part[:n]) != want {
			t.Fatalf("got %q, %v, want %q", part[:n], err, want)
		}
	}
	r.Left = 2
	for range 2 {
		if _, err := r.Read(part); !errors.Is(err, errLong) {
			t.Fatalf("got %v, want %v", err, errLong)
		}
	}
}
