package front

import "time"

// HearingTime is how long a stream that is to break stays open behind its last words. A client
// that reads by fetch, as those of JavaScript do, loses what it has not read when its response
// breaks: tokens, and the event that says why.
const HearingTime = time.Second

// The time and bytes that a closed connection is read on for.
const (
	LingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)
