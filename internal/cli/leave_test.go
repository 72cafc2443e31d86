package cli

import (
	"testing"
	"testing/synctest"
	"time"
)

// Requests that were cut are waited for as long as they end one after another, also in a process
// that stands still meanwhile, and those that do not end are not waited for without end.
func TestLastWords(t *testing.T) {
	for name, c := range map[string]struct {
		left        func(after time.Duration, look int) int
		ended       bool
		least, most time.Duration
	}{
		"nothing": {left: func(time.Duration, int) int { return 0 }, ended: true},
		"slowly": {left: func(d time.Duration, _ int) int { return max(0, 4-int(d/(5*time.Second))) }, ended: true,
			least: 20 * time.Second, most: 21 * time.Second},
		"one that does not end": {left: func(d time.Duration, _ int) int { return max(1, 3-int(d/time.Second)) },
			least: 2*time.Second + lastWordsFor, most: 3*time.Second + lastWordsFor},
		"a process that stands still": {left: func(_ time.Duration, look int) int {
			if look == 3 {
				time.Sleep(time.Minute)
			}
			return max(0, 200-look)
		}, ended: true, least: time.Minute, most: 63 * time.Second},
		"very many": {left: func(d time.Duration, _ int) int { return 1000 - int(d/time.Second) },
			least: lastWordsMost, most: lastWordsMost + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, look := time.Now(), 0
				ended := lastWords(func() int {
					look++
					return c.left(time.Since(began), look)
				})
				if took := time.Since(began); ended != c.ended || took < c.least || took > c.most {
					t.Errorf("ended %v after %v, want %v after %v to %v", ended, took, c.ended, c.least, c.most)
				}
			})
		})
	}
}
