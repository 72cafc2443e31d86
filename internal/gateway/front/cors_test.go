package front

import (
	"slices"
	"strings"
	"testing"
)

func TestParseOrigins(t *testing.T) {
	for words, want := range map[string]string{
		"off":                  "",
		"any":                  "any",
		"https://chat.example": "https://chat.example",
		"HTTPS://Chat.Example:443 http://a:80 http://localhost:3000": "http://a http://localhost:3000 https://chat.example",
		"chrome-extension://abcdefgh tauri://localhost":              "chrome-extension://abcdefgh tauri://localhost",
	} {
		o, err := ParseOrigins(strings.Fields(words))
		var got []string
		for origin := range o.listed {
			got = append(got, origin)
		}
		slices.Sort(got)
		if o.any {
			got = append(got, "any")
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v", words, got, err)
		}
	}
	for _, words := range []string{"", "*", "chat.example", "localhost:3000", "null", "https://", "https://a/", "https://a/v1", "https://u:p@a", "https://*.a", "https://a?b", "any off", "any https://a", "off https://a"} {
		if o, err := ParseOrigins(append(strings.Fields(words), make([]string, 1-min(1, len(words)))...)); err == nil {
			t.Errorf("%q: accepted as %+v", words, o)
		}
	}
}
