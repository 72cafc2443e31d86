package cli

import (
	"strings"

	"golang.org/x/net/http/httpguts"
)

// eachHeader calls add for each header that flags give, as 'Name: value'. The older form
// NAME=VALUE is still read, also several with semicolons between, as the environment
// has them.
func eachHeader(flags []string, add func(name, value string)) error {
	for _, flag := range flags {
		parts := []string{flag}
		if at := strings.IndexAny(flag, ":="); at >= 0 && flag[at] == '=' {
			parts = strings.Split(flag, ";")
		}
		for _, part := range parts {
			at := strings.IndexAny(part, ":=")
			if at < 0 {
				return wrongf("--header %q: want 'Name: value'", flag)
			}
			name, value := strings.TrimSpace(part[:at]), strings.TrimSpace(part[at+1:])
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return wrongf("--header %q: want 'Name: value', on one line and with a name of letters, digits and hyphens", flag)
			}
			add(name, value)
		}
	}
	return nil
}

// headers returns the headers as a map, in which the last one of a name is left.
func headers(flags []string) (map[string]string, error) {
	all := map[string]string{}
	err := eachHeader(flags, func(name, value string) { all[name] = value })
	return all, err
}
