package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes. Flags and the configuration file may write it with a unit,
// such as 32MiB.
type byteSize int64

// units are those of sizes. The binary ones come first, the largest before the others,
// as sizes are printed in them.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// sizeForms completes the error of a size that cannot be read.
const sizeForms = "want a number of bytes, such as 33554432, or one with a unit: 32MiB, 1.5GiB, 64KiB (powers of 1024), 32MB, 1GB, 64kB (powers of 1000)"

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *byteSize) UnmarshalText(text []byte) error {
	n, err := parseBytes(string(text))
	if err != nil {
		return err
	}
	if n != math.Trunc(n) || math.Abs(n) >= 1<<53 {
		return fmt.Errorf("%q is not a whole number of bytes below 8 PiB; %s", text, sizeForms)
	}
	*b = byteSize(n)
	return nil
}

// String writes the size in the largest binary unit of which it is a whole number.
func (b byteSize) String() string {
	for _, u := range units {
		if n := int64(b); n != 0 && u.bytes&(u.bytes-1) == 0 && n%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// byteRate is a number of bytes per second; it may have a fraction.
type byteRate float64

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *byteRate) UnmarshalText(text []byte) error {
	n, err := parseBytes(string(text))
	*r = byteRate(n)
	return err
}

// parseBytes reads a number with or without a unit.
func parseBytes(text string) (float64, error) {
	number, scale := text, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, scale = strings.TrimSuffix(rest, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q is not a size; %s", text, sizeForms)
	}
	return n * float64(scale), nil
}
