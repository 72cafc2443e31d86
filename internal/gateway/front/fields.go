package front

import "net/http"

// The fields of each response of the API.
var (
	noStore = []string{"no-store, no-transform"}
	noSniff = []string{"nosniff"}
	// unbuffered asks nginx to pass a stream on as it comes. By default nginx gathers it.
	unbuffered = []string{"no"}
)

// Protect puts into a response's head that no cache keeps it, no proxy changes it, and no browser
// takes it for another type. An engine's own values do not pass a relay.
func Protect(h http.Header) {
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
}
