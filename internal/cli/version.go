package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// release is the version of a build that is not made from a module's version or a
// repository: go build -ldflags "-X weir/internal/cli.release=v1.2.3".
var release string

type versionCommand struct{}

// Help implements kong's extended help.
func (versionCommand) Help() string {
	return `The build is Go's version, and the system and processor that the program was built for. A build in a clone has the version and the commit of the repository. A build by go install MODULE@VERSION has the version only.

Examples:
  weir version
  weir --version
  go build -ldflags "-X weir/internal/cli.release=v1.2.3" ./cmd/weir    names a build that has neither`
}

// Run implements the command.
func (versionCommand) Run(s *streams) error {
	_, err := fmt.Fprintln(s.out, version())
	return err
}

// version returns the output of weir version.
func version() string { return describeBuild(build(), release) }

// build returns the build information of this binary.
func build() *debug.BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok { // a binary that was not built by the go command
		info = &debug.BuildInfo{}
	}
	return info
}

func settingsOf(info *debug.BuildInfo) map[string]string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return settings
}

// commitOf is the commit that a build was made from; empty where it was not recorded.
func commitOf(info *debug.BuildInfo) string {
	settings := settingsOf(info)
	commit := settings["vcs.revision"]
	if commit != "" && settings["vcs.modified"] == "true" {
		commit += ", with changes"
	}
	return commit
}

// describeBuild describes the build, in lines without an end. It states what was not
// recorded.
func describeBuild(info *debug.BuildInfo, release string) string {
	settings := settingsOf(info)
	name := cmp.Or(release, strings.TrimPrefix(info.Main.Version, "(devel)"), "devel")
	commit := cmp.Or(commitOf(info), "not recorded: built outside a repository, or with -buildvcs=false")
	system := cmp.Or(settings["GOOS"], runtime.GOOS) + "/" + cmp.Or(settings["GOARCH"], runtime.GOARCH)
	return fmt.Sprintf("weir %s\ncommit    %s\ngo        %s\nos/arch   %s", name, commit, cmp.Or(info.GoVersion, runtime.Version()), system)
}
