// Package gotext has text for benchmarks on every machine that builds weir: the documentation and
// sources of Go.
package gotext

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Paths returns the files of Go's tree that have one of these extensions, in the order of their
// names.
func Paths(extensions ...string) (paths []string, err error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	root := strings.TrimSpace(string(out))
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && slices.Contains(extensions, filepath.Ext(path)) {
			paths = append(paths, path)
		}
		return err
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s has no files %s", root, strings.Join(extensions, ", "))
	}
	return paths, err
}

// Text returns a text of so many bytes: one file after the other, of each at most so many bytes.
// It is valid UTF-8.
func Text(size, most int, extensions ...string) (string, error) {
	paths, err := Paths(extensions...)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, path := range paths {
		if all.Len() >= size {
			break
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		all.WriteString(strings.ToValidUTF8(string(data[:min(most, len(data))]), ""))
	}
	if all.Len() < size {
		return "", fmt.Errorf("%d bytes of Go's files %s, want %d", all.Len(), strings.Join(extensions, ", "), size)
	}
	return strings.ToValidUTF8(all.String()[:size], ""), nil
}

// Paragraphs are what new texts are made of.
type Paragraphs []string

// paragraphBytes is how much is read, of documentation and of sources each.
const paragraphBytes = 4 << 20

// ReadParagraphs reads Go's documentation and sources, half of each.
func ReadParagraphs() (all Paragraphs, err error) {
	for _, extensions := range [][]string{{".html", ".md", ".txt"}, {".go"}} {
		paths, err := Paths(extensions...)
		if err != nil {
			return nil, err
		}
		left := paragraphBytes
		for _, path := range paths {
			if left <= 0 {
				break
			}
			if strings.Contains(filepath.ToSlash(path), "/testdata/") {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if !utf8.Valid(data) {
				continue
			}
			for p := range strings.SplitSeq(string(data[:min(left, len(data))]), "\n\n") {
				if p = strings.ToValidUTF8(p, ""); len(p) > 20 && len(p) < 4000 {
					all = append(all, p)
					left -= len(p)
				}
			}
		}
	}
	if len(all) < 1000 {
		return nil, fmt.Errorf("%d paragraphs in Go's tree are too few to make texts of", len(all))
	}
	return all, nil
}

// Draw returns a text of so many bytes, of paragraphs in a random order: words recur as they do
// in text, and no 4 KB of it do.
func (p Paragraphs) Draw(r *rand.Rand, size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(p[r.IntN(len(p))])
		b.WriteString("\n\n")
	}
	return strings.ToValidUTF8(b.String()[:size], "")
}
