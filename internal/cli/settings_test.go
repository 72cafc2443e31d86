package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// inForce returns the flags in force as a command line has them.
func inForce(t *testing.T, args ...string) (settings, map[string]setting) {
	t.Helper()
	parser, err := kong.New(&commands{}, kong.Name("weir"), kong.Writers(io.Discard, io.Discard), kong.DefaultEnvars("WEIR"), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	k, err := parser.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	s, by := flagsOf(k), map[string]setting{}
	for _, f := range s.Flags {
		by[f.Name] = f
	}
	return s, by
}

// The flags in force are shown with what was given, and without what may be a secret.
func TestSettings(t *testing.T) {
	t.Setenv("WEIR_MAX_QUEUE", "7")
	s, by := inForce(t, "serve", "--engine", "http://user:s3cret@a:8000,key-file=/etc/key", "--engine", "openai=https://s3cret@b:8000/v1?key=s3cret#s3cret",
		"--engine", "http://c:8000", "--policy", "cost", "--tls-key", "/etc/tls.key", "--debug-stage-delay", "route=5ms")
	if s.Command != "serve" || len(by) < 40 || strings.Contains(s.Version, "\n") {
		t.Errorf("%q of %q with %d flags", s.Command, s.Version, len(by))
	}
	for name, want := range map[string]string{
		"engine": "http://hidden@a:8000,key-file=/etc/key; openai=https://hidden@b:8000/v1?hidden; http://c:8000", "policy": "cost", "tls-key": "/etc/tls.key", "max-queue": "7",
		"listen": "127.0.0.1:8000", "first-timeout": "10m0s", "debug-stage-delay": "route=5ms", "media": "data", "log-level": "INFO",
	} {
		if by[name].Value != want || by[name].Hidden {
			t.Errorf("--%s: %+v, want %q", name, by[name], want)
		}
	}
	for name, given := range map[string]bool{"engine": true, "max-queue": true, "tls-key": true, "listen": false, "queue": false} {
		if by[name].Given != given {
			t.Errorf("--%s: given %t", name, by[name].Given)
		}
	}
	for _, f := range s.Flags {
		if strings.Contains(f.Value, "s3cret") {
			t.Errorf("--%s shows %q", f.Name, f.Value)
		}
	}
}

// The name of a flag says that it may hold a secret, unless somebody has looked.
func TestSettingsHide(t *testing.T) {
	for name, want := range map[string]bool{
		"api-key": true, "provider-keys": true, "keys": false, "admin-keys": false, "otlp-header": true, "otlp-headers": true, "auth": true, "token": true, "admin-password": true,
		"tls-key": false, "session-header": false, "max-inflight-tokens": false, "tokenize-workers": false, "monkey": false,
	} {
		if mayHoldSecret(name) != want {
			t.Errorf("--%s: %t", name, !want)
		}
	}
	// URLs with users, in every place where one may be written.
	for value, want := range map[string]string{
		"":                       "",
		"plain, text":            "plain, text",
		"http://u:p@h/":          "http://hidden@h/",
		"a=b=http://p@h:1,c=d":   "a=b=http://hidden@h:1,c=d",
		"http://h/%zz?p@":        "(a URL that cannot be read)",
		"x http://a/, http://b/": "x http://a/, http://b/",
	} {
		if got := withoutUsers(value); got != want {
			t.Errorf("%q shows as %q, want %q", value, got, want)
		}
	}
}
