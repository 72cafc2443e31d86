//go:build !linux

package record

import "time"

// hold computes for a time.
func hold(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
}
