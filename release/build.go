package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mostBytes is how large a binary may be. A dependency that doubles it should be
// noticed when it comes, and not by those who download it.
const mostBytes = 40 << 20

// build makes the static binary of a target and returns its path.
func build(ctx context.Context, src source, t target, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "weir")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=true",
		"-ldflags", "-s -w -X weir/internal/cli.release="+src.version, "-o", binary, "./cmd/weir")
	cmd.Dir = src.root
	// The caller's GOFLAGS and the like would be part of the binary.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"GOFLAGS", "GOEXPERIMENT", "GOAMD64", "GOARM64"}, name)
	}), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		return "", err
	}
	if info.Size() > mostBytes {
		return "", fmt.Errorf("the binary has %d bytes, %d at most: find what made it grow (go version -m, go tool nm -size)", info.Size(), mostBytes)
	}
	return binary, nil
}

// A part is something of somebody else's in a binary.
type part struct {
	name, version string
	purl          string // its package URL
	sum           string // Go's hash of the module; empty for others
	files         []file // its licences and notices
	licence       string // by its SPDX name
}

// dependencies lists what a binary contains of others: modules as the binary itself
// records them, Go's own library, and what the operators' page embeds.
func dependencies(ctx context.Context, src source, binary string) ([]part, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	if modified(info) && !strings.HasSuffix(src.version, "-dirty") {
		return nil, errors.New("the binary records changes that are not committed")
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, withStderr(err)
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	all := []found{{part{name: "std", version: version, purl: "pkg:golang/std@" + version}, strings.TrimSpace(string(goroot))}}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		dir, err := folder(ctx, src, dep.Path, dep.Version)
		if err != nil {
			return nil, err
		}
		all = append(all, found{part{name: dep.Path, version: dep.Version, purl: "pkg:golang/" + dep.Path + "@" + dep.Version, sum: dep.Sum}, dir})
	}
	page, err := embedded(src)
	if err != nil {
		return nil, err
	}
	all = append(all, page)
	var parts []part
	for _, f := range all {
		if err := f.read(); err != nil {
			return nil, err
		}
		parts = append(parts, f.part)
	}
	return parts, nil
}

func modified(info *buildinfo.BuildInfo) bool {
	for _, s := range info.Settings {
		if s.Key == "vcs.modified" {
			return s.Value == "true"
		}
	}
	return false
}

// folder is where the go command keeps a module's source.
func folder(ctx context.Context, src source, path, version string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path+"@"+version)
	cmd.Dir = src.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", path, version, withStderr(err))
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		return "", err
	}
	return m.Dir, nil
}

// embedded is uPlot, the one piece of JavaScript of others' that the page contains.
// Its licence stands beside the page, because npm's folder need not be there.
func embedded(src source) (found, error) {
	const name = "uplot"
	page := filepath.Join(src.root, "internal", "observe", "page")
	text, err := os.ReadFile(filepath.Join(page, "package.json"))
	if err != nil {
		return found{}, err
	}
	var manifest struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &manifest); err != nil {
		return found{}, err
	}
	if len(manifest.Dependencies) != 1 || manifest.Dependencies[name] == "" {
		return found{}, fmt.Errorf("%s depends on %v: this program knows of %s alone", page, manifest.Dependencies, name)
	}
	version := manifest.Dependencies[name]
	return found{part{name: name, version: version, purl: "pkg:npm/" + name + "@" + version}, filepath.Join(page, "licences", name)}, nil
}

// copyFile writes a file's content to w.
func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
