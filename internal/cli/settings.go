package cli

import (
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// settings are the flags in force, as /config shows them.
type settings struct {
	Version string    `json:"version"`
	Command string    `json:"command"`
	Flags   []setting `json:"flags"`
	// Generation counts the changes of engines and models since the start.
	Generation uint64 `json:"generation,omitzero"`

	inFile int // keys of the configuration file; one if it says that there are none
}

// setting is one flag.
type setting struct {
	Name  string `json:"name"`
	Group string `json:"group,omitzero"`
	Value string `json:"value"`
	Given bool   `json:"given"` // otherwise it is the default
	// Pending is the value in the configuration file that a restart would apply.
	Pending string `json:"pending,omitzero"`
	// Hidden reports whether the value may hold a secret and is left out.
	Hidden bool   `json:"hidden,omitzero"`
	Help   string `json:"help,omitzero"`

	secret string // the value of a hidden one, to notice that it changes
}

// secretWords are words in the names of flags that may hold secrets. harmless are names
// that have such a word and hold a path, or the names of headers.
var (
	secretWords = []string{"key", "keys", "token", "secret", "password", "header", "headers", "auth", "credential", "credentials", "cookie"}
	harmless    = []string{"tls-key", "session-header", "keys", "admin-keys", "admin-tls-key"}
)

// mayHoldSecret reports whether a flag's value is to be left out.
func mayHoldSecret(name string) bool {
	return !slices.Contains(harmless, name) && slices.ContainsFunc(strings.Split(name, "-"), func(word string) bool { return slices.Contains(secretWords, word) })
}

// flagsOf returns the flags in force of the command that runs.
func flagsOf(k *kong.Context) settings {
	first, _, _ := strings.Cut(version(), "\n")
	s := settings{Version: first, Command: k.Selected().Name, Flags: []setting{}}
	for _, flag := range k.Selected().Flags {
		if flag.Name == "help" || flag.Hidden {
			continue
		}
		v := setting{Name: flag.Name, Help: flag.Help, Given: given(k, flag)}
		if flag.Group != nil {
			v.Group = strings.TrimSuffix(flag.Group.Title, ":")
		}
		if v.Hidden = v.Given && mayHoldSecret(flag.Name); v.Hidden {
			v.secret = valueOf(flag.Target)
		} else {
			v.Value = withoutUsers(valueOf(flag.Target))
		}
		s.Flags = append(s.Flags, v)
	}
	return s
}

// given reports whether a flag was set: on the command line or by the file, which leave it
// in the path, or by the environment.
func given(k *kong.Context, flag *kong.Flag) bool {
	return slices.ContainsFunc(k.Path, func(p *kong.Path) bool { return p.Flag == flag }) ||
		slices.ContainsFunc(flag.Envs, func(env string) bool { return os.Getenv(env) != "" })
}

// valueOf writes a flag's value as the command line would have it, near enough.
func valueOf(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
	case reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, fmt.Sprint(v.Index(i).Interface()))
		}
		return strings.Join(parts, "; ")
	case reflect.Map:
		for of := v.MapRange(); of.Next(); {
			parts = append(parts, fmt.Sprintf("%v=%v", of.Key(), of.Value()))
		}
		slices.Sort(parts)
		return strings.Join(parts, "; ")
	}
	return fmt.Sprint(v.Interface())
}

// withoutUsers replaces names and passwords of URLs within a value, whose parts are
// separated by commas, semicolons and spaces, or follow KIND=. It also replaces the query
// of a URL.
func withoutUsers(value string) string {
	parts := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
	for _, part := range parts {
		at := strings.Index(part, "://")
		if at < 0 {
			continue
		}
		begin := strings.LastIndexAny(part[:at], "=") + 1
		if clean := withoutUser(part[begin:]); clean != part[begin:] {
			value = strings.ReplaceAll(value, part[begin:], clean)
		}
	}
	return value
}

// withoutUser does so with one URL.
func withoutUser(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	if u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return text
	}
	if u.User != nil {
		u.User = url.User("hidden")
	}
	if u.RawQuery != "" {
		u.RawQuery = "hidden"
	}
	u.Fragment = ""
	return u.String()
}
