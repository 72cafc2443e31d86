package cli

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// Each way of building names what it knows, and says what it does not.
func TestDescribeBuild(t *testing.T) {
	const unknown = "not recorded: built outside a repository, or with -buildvcs=false"
	here := runtime.GOOS + "/" + runtime.GOARCH
	for _, test := range []struct {
		name, release string
		info          debug.BuildInfo
		want          string
	}{
		{"a clone", "", debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.0.0-20261122101112-0123456789ab+dirty"}, Settings: []debug.BuildSetting{
			{Key: "GOARCH", Value: "arm64"}, {Key: "GOOS", Value: "darwin"}, {Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
		}}, "weir v0.0.0-20261122101112-0123456789ab+dirty\ncommit    0123456789abcdef, with changes\ngo        go1.26.8\nos/arch   darwin/arm64"},
		{"go install", "", debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v1.2.3"}}, "weir v1.2.3\ncommit    " + unknown + "\ngo        go1.26.8\nos/arch   " + here},
		{"without a repository", "", debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}}, "weir devel\ncommit    " + unknown + "\ngo        go1.26.8\nos/arch   " + here},
		{"a name given", "v1.2.3", debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}}, "weir v1.2.3\ncommit    " + unknown + "\ngo        go1.26.8\nos/arch   " + here},
		{"another builder", "", debug.BuildInfo{}, "weir devel\ncommit    " + unknown + "\ngo        " + runtime.Version() + "\nos/arch   " + here},
	} {
		if got := describeBuild(&test.info, test.release); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
