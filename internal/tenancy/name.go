package tenancy

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName bounds the names of keys, tenants and bands, in bytes.
const MaxName = 64

// CheckName reports what is wrong with the name of a key, a tenant or a band: logs, metrics and
// tables show it.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name is empty")
	case len(name) > MaxName:
		return fmt.Errorf("the name %.16q... is longer than %d bytes", name, MaxName)
	case !Printable(name):
		return fmt.Errorf("the name %q has characters that cannot be printed", name)
	}
	return nil
}

// Printable reports whether a name can be shown as it is.
func Printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}
