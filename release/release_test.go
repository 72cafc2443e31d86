package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// commit is a source whose binary is a text.
func commit(t *testing.T) (source, string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(binary, []byte("a binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	return source{root, "v9.8.7", strings.Repeat("ab", 20), time.Unix(1767225600, 0).UTC()}, binary
}

var parts = []part{
	{name: "std", version: "1.26.8", purl: "pkg:golang/std@1.26.8", files: []file{{"LICENSE", []byte("words of Go")}, {"PATENTS", []byte("a grant")}}, licence: "BSD-3-Clause"},
	{name: "example.com/x", version: "v1.0.0", purl: "pkg:golang/example.com/x@v1.0.0", sum: "h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", files: []file{{"COPYING", []byte("words of x")}}, licence: "MIT"},
}

// unpack lists a tar's files with what they contain.
func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(1767225600, 0)) {
			t.Errorf("%s is of %d:%d, %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		files[h.Name] = string(text)
	}
}

func TestImage(t *testing.T) {
	src, binary := commit(t)
	var sums []string
	dir := t.TempDir()
	for i := range 2 {
		path := filepath.Join(dir, fmt.Sprint(i, ".tar"))
		platforms := []platform{{targets[0], binary, licences(parts)}, {targets[1], binary, licences(parts)}}
		if err := image(src, platforms, path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(text)))
		if i > 0 {
			continue
		}
		for name, text := range unpack(t, bytes.NewReader(text)) {
			path := filepath.Join(dir, "layout", name)
			if strings.HasSuffix(name, "/") {
				err = os.MkdirAll(path, 0o755)
			} else {
				err = os.MkdirAll(filepath.Dir(path), 0o755)
				err = cmp.Or(err, os.WriteFile(path, []byte(text), 0o644))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if sums[0] != sums[1] {
		t.Error("two images of one commit differ")
	}
	read, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	if err != nil {
		t.Fatal(err)
	}
	outer, err := read.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 {
		t.Fatal(outer, err)
	}
	inner, err := read.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	index, err := inner.IndexManifest()
	if err != nil || len(index.Manifests) != 2 {
		t.Fatal(index, err)
	}
	for i, m := range index.Manifests {
		if !m.Platform.Equals(v1.Platform{OS: "linux", Architecture: targets[i].arch}) {
			t.Errorf("platform %d is %v", i, m.Platform)
		}
		img, err := inner.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != nobody || config.Architecture != targets[i].arch || !slices.Equal(config.Config.Entrypoint, []string{"/weir"}) || config.Config.Labels["org.opencontainers.image.revision"] != src.commit {
			t.Errorf("%+v", config)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatal(layers, err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		files := unpack(t, content)
		if files["weir"] != "a binary" || !strings.Contains(files["THIRD_PARTY_LICENSES"], "a grant") || strings.Count(files["etc/ssl/certs/ca-certificates.crt"], "BEGIN CERTIFICATE") < 100 {
			t.Errorf("the files are %v", len(files))
		}
	}
}

func TestBill(t *testing.T) {
	src, binary := commit(t)
	path := filepath.Join(t.TempDir(), "bom.json")
	if err := bill(src, targets[0], parts, binary, path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(f, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("a binary")))
	if main := bom.Metadata.Component; main.Version != src.version || (*main.Hashes)[0].Value != want {
		t.Errorf("%+v", main)
	}
	for i, c := range *bom.Components {
		if c.Name != parts[i].name || c.PackageURL != parts[i].purl || (*c.Licenses)[0].License.ID != parts[i].licence {
			t.Errorf("%+v", c)
		}
	}
}

func TestLicences(t *testing.T) {
	text := string(licences(parts))
	for _, want := range []string{"std 1.26.8: LICENSE\n", "std 1.26.8: PATENTS\n", "example.com/x v1.0.0: COPYING\n", "words of Go", "a grant", "words of x"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	own, err := os.ReadFile("../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	const bsd = "Redistribution and use in source and binary forms\nare permitted. Redistributions in binary form must reproduce the notice."
	for text, id := range map[string]string{
		string(own):                             "Apache-2.0",
		bsd:                                     "BSD-2-Clause",
		bsd + " Neither the\n\tname of Example": "BSD-3-Clause",
		bsd + " Neither the name of Example. All advertising materials must":                                                                    "",
		"Permission is hereby granted, free of charge, to any person. The above copyright notice and this permission notice shall be included.": "MIT",
		"GNU GENERAL PUBLIC LICENSE Version 3": "",
		"":                                     "",
	} {
		if got := recognise(text); got != id {
			t.Errorf("%.40q is %q, %q wanted", text, got, id)
		}
	}
	for name, files := range map[string]map[string]string{
		"has no licence":   {"README": "x"},
		"no known licence": {"LICENSE": "Do as you like."},
	} {
		f := found{dir: t.TempDir(), part: part{name: "x"}}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(f.dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.read(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", files, err)
		}
	}
}

func TestArchive(t *testing.T) {
	src, binary := commit(t)
	dir := t.TempDir()
	var texts [2][]byte
	for i := range texts {
		path := filepath.Join(dir, fmt.Sprint(i), "weir-v9.8.7-linux-amd64.tar.gz")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := archive(src, path, binary, []byte("notices")); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = text
		if err := checksums(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Error("two archives of one commit differ")
	}
	sums, err := os.ReadFile(filepath.Join(dir, "0", "SHA256SUMS"))
	if want := fmt.Sprintf("%x  weir-v9.8.7-linux-amd64.tar.gz\n", sha256.Sum256(texts[0])); err != nil || string(sums) != want {
		t.Errorf("%q, %v", sums, err)
	}
	if err := archive(src, filepath.Join(dir, "none.tar.gz"), binary+".gone", nil); err == nil {
		t.Error("an archive without a binary")
	}
	if _, err := os.Stat(filepath.Join(dir, "none.tar.gz")); !os.IsNotExist(err) {
		t.Error("half an archive is left")
	}
}

func TestChoose(t *testing.T) {
	if all, err := choose(""); err != nil || len(all) != 4 {
		t.Error(all, err)
	}
	if one, err := choose("darwin/arm64"); err != nil || len(one) != 1 || one[0] != targets[3] {
		t.Error(one, err)
	}
	if _, err := choose("linux/amd64,plan9/386"); err == nil || !strings.Contains(err.Error(), `"plan9/386"`) {
		t.Error(err)
	}
}
