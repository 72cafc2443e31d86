package cli

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// A variable that sets no flag is named, with the one that may be meant, and those that
// Kubernetes sets for a Service of weir's name are not.
func TestUnknownEnvironment(t *testing.T) {
	var c commands
	parser, err := newParser(&c, &fileResolver{}, &streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	got := unknownEnvironment(parser.Model, []string{
		"HOME=/", "WEIR_LISTEN=a", "WEIR_ADMIN_KEY=k", "WEIR_OTLP_HEADERS=a=b", "WEIR_CONFIG=f", "WEIR_LISTN=a=b", "WEIR_MAXQUEUE=", "WEIR_ELSEWHERE_ALTOGETHER=1", "WEIR_MAXREQUESTS=1",
		"WEIR_SERVICE_HOST=10.0.0.1", "WEIR_SERVICE_PORT=8000", "WEIR_SERVICE_PORT_HTTP=8000", "WEIR_PORT=tcp://10.0.0.1:8000", "WEIR_PORT_8000_TCP=tcp://10.0.0.1:8000",
		"WEIR_PORT_8000_TCP_ADDR=10.0.0.1", "WEIR_ADMIN_SERVICE_HOST=10.0.0.2",
	})
	want := []string{
		"the environment variable WEIR_ELSEWHERE_ALTOGETHER sets no flag and is ignored",
		"the environment variable WEIR_LISTN sets no flag and is ignored (did you mean WEIR_LISTEN?)",
		"the environment variable WEIR_MAXREQUESTS sets no flag and is ignored (did you mean WEIR_MAX_REQUESTS?)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	t.Setenv("WEIR_LISTN", "127.0.0.1:1")
	var said strings.Builder
	if code := Main([]string{"version"}, nil, io.Discard, &said); code != 0 || said.String() != "weir: "+want[1]+"\n" {
		t.Errorf("exit code %d, %q", code, said.String())
	}
}
