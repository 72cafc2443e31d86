// Command release makes what a release of weir consists of: static binaries in
// archives, a container image, a list of what is in them (SBOM), the licences of the
// dependencies, and checksums of all that. It needs the go command and git, and no
// container daemon.
//
// Two runs on the same commit with the same version of Go make the same bytes: every
// time in the output is the commit's own, and archives list their files in a fixed
// order.
//
//	go run -C release . --out ../dist
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// targets are the systems that a release is built for. An image has those of Linux.
var targets = []target{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"},
}

// target is a system and a processor, by Go's names.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// A source is the commit that is released.
type source struct {
	root    string    // of the repository
	version string    // as "v0.2.0", or what git describe makes of a commit without a tag
	commit  string    // its full hash
	time    time.Time // of the commit
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "release:", err)
			os.Exit(1)
		}
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	out := flags.String("out", "dist", "the folder for the release's files; it is made anew")
	version := flags.String("version", "", "the release's version, as v0.2.0 (default: by git describe)")
	only := flags.String("only", "", "build for these systems only, as linux/amd64,darwin/arm64")
	dirty := flags.Bool("dirty", false, "allow changes that are not committed; the version then ends with -dirty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag; --help lists them", flags.Arg(0))
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	src, err := describe(ctx, *version, *dirty)
	if err != nil {
		return err
	}
	return release(ctx, src, chosen, *out)
}

// choose returns the targets that a list names, all where it is empty.
func choose(list string) ([]target, error) {
	if list == "" {
		return targets, nil
	}
	var chosen []target
	for name := range strings.SplitSeq(list, ",") {
		found := false
		for _, t := range targets {
			if t.String() == name {
				chosen, found = append(chosen, t), true
			}
		}
		if !found {
			return nil, fmt.Errorf("--only: %q is not built; there are %v", name, targets)
		}
	}
	return chosen, nil
}

// describe reads the commit from git. Changes that are not committed would be in the
// binaries under the commit's name, so they are refused unless dirty is set.
func describe(ctx context.Context, version string, dirty bool) (source, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), withStderr(err))
		}
		return strings.TrimSpace(string(out)), nil
	}
	root, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return source{}, err
	}
	changes, err := git("-C", root, "status", "--porcelain")
	if err != nil {
		return source{}, err
	}
	if changes != "" && !dirty {
		return source{}, fmt.Errorf("there are changes that are not committed (commit them, or give --dirty):\n%s", changes)
	}
	shown, err := git("-C", root, "show", "-s", "--format=%H %ct", "HEAD")
	if err != nil {
		return source{}, err
	}
	commit, at, _ := strings.Cut(shown, " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("the commit's time: %w", err)
	}
	if version == "" {
		if version, err = git("-C", root, "describe", "--tags", "--always", "--match", "v*"); err != nil {
			return source{}, err
		}
	}
	if strings.ContainsAny(version, "/ \t\n") {
		return source{}, fmt.Errorf("--version %q: it becomes part of file names", version)
	}
	if changes != "" {
		version += "-dirty"
	}
	return source{root, version, commit, time.Unix(seconds, 0).UTC()}, nil
}

// release builds everything into out, which a former release must not leave files in.
func release(ctx context.Context, src source, chosen []target, out string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "weir-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var images []platform
	for _, t := range chosen {
		began := time.Now()
		binary, err := build(ctx, src, t, filepath.Join(work, t.os+"-"+t.arch))
		if err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
		parts, err := dependencies(ctx, src, binary)
		if err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
		notices := licences(parts)
		base := filepath.Join(out, fmt.Sprintf("weir-%s-%s-%s", src.version, t.os, t.arch))
		if err := archive(src, base+".tar.gz", binary, notices); err != nil {
			return err
		}
		if err := bill(src, t, parts, binary, base+".cdx.json"); err != nil {
			return err
		}
		if t.os == "linux" {
			images = append(images, platform{t, binary, notices})
		}
		info, err := os.Stat(binary)
		if err != nil {
			return err
		}
		fmt.Printf("%-13v %5.1f MB, %d dependencies, %.0f s\n", t, float64(info.Size())/1e6, len(parts), time.Since(began).Seconds())
	}
	if len(images) > 0 {
		if err := image(src, images, filepath.Join(out, fmt.Sprintf("weir-%s-oci.tar", src.version))); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	return checksums(out)
}

// withStderr adds to an error of a command what it wrote.
func withStderr(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
