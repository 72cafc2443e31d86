package http1

import "testing"

func TestTakesGzip(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "deflate, gzip": true, "gzip;q=0": false, "gzip; q=0.5": true, "gzip;q=0.0, br": false, "x-gzip": false, "identity": false, "gzip;q=x": false,
	} {
		if TakesGzip([]string{accept}) != want {
			t.Errorf("%q: %t", accept, !want)
		}
	}
}
