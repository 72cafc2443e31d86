package report

import "encoding/json"

// appendString appends a string's JSON; invalid UTF-8 is replaced.
func appendString(b []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // of a string it cannot fail
	return append(b, quoted...)
}
