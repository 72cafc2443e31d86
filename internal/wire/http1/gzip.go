package http1

import (
	"strconv"
	"strings"
)

// TakesGzip reports whether a caller accepts gzip, by its Accept-Encoding.
func TakesGzip(accept []string) bool {
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, weight, weighed := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.ReplaceAll(weight, " ", ""), "q="), 64)
		return !weighed || err == nil && q > 0
	}
	return false
}
