package cli

import (
	"strings"
	"testing"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]byteSize{
		"0": 0, "33554432": 32 << 20, "32MiB": 32 << 20, "32 MiB": 32 << 20, "1.5GiB": 3 << 29, "64KiB": 64 << 10, "2TiB": 2 << 40,
		"32MB": 32e6, "1GB": 1e9, "64kB": 64e3, "64KB": 64e3, "100B": 100, "1e6": 1e6, "-1": -1,
	} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "32M", "MiB", "32mib", "1.5", "0.3KiB", "9000000000GiB", "NaN", "Inf", "1 2KiB"} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "32MiB") {
			t.Errorf("%q is %d (%v), want an error with the accepted forms", text, got, err)
		}
	}
	for size, want := range map[byteSize]string{0: "0", 1: "1", 1023: "1023", 4096: "4KiB", 32 << 20: "32MiB", 3 << 29: "1536MiB", 1 << 40: "1TiB", 1e9: "1000000000"} {
		if got := size.String(); got != want {
			t.Errorf("%d is printed %q, want %q", int64(size), got, want)
		}
		var back byteSize
		if err := back.UnmarshalText([]byte(size.String())); err != nil || back != size {
			t.Errorf("%q is read back as %d (%v), want %d", size.String(), back, err, size)
		}
	}
}

// A bandwidth need not be a whole number of bytes.
func TestByteRates(t *testing.T) {
	for text, want := range map[string]byteRate{"25e9": 25e9, "25GB": 25e9, "0.5": 0.5, "1GiB": 1 << 30} {
		var got byteRate
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  map[string]string
		err   string
	}{
		{[]string{"X-Session-Id: a", "Cookie: a=1; b=2"}, map[string]string{"X-Session-Id": "a", "Cookie": "a=1; b=2"}, ""},
		{[]string{"Authorization:Bearer x=y"}, map[string]string{"Authorization": "Bearer x=y"}, ""},
		{[]string{"X-A=1", "X-B=http://host:1/"}, map[string]string{"X-A": "1", "X-B": "http://host:1/"}, ""},
		{[]string{"X-A=1;X-B=2"}, map[string]string{"X-A": "1", "X-B": "2"}, ""}, // the environment's form
		{[]string{"X-Empty:"}, map[string]string{"X-Empty": ""}, ""},
		{nil, map[string]string{}, ""},
		{[]string{"x"}, nil, "'Name: value'"},
		{[]string{": x"}, nil, "'Name: value'"},
		{[]string{"a b: x"}, nil, "'Name: value'"},
		{[]string{"A: b\r\nC: d"}, nil, "'Name: value'"},
	} {
		got, err := headers(c.flags)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v (%v), want an error with %s", c.flags, got, err, c.err)
			}
		case err != nil || len(got) != len(c.want):
			t.Errorf("%q: %v (%v), want %v", c.flags, got, err, c.want)
		default:
			for name, value := range c.want {
				if got[name] != value {
					t.Errorf("%q: %v, want %v", c.flags, got, c.want)
				}
			}
		}
	}
}
