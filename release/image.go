package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nobody is the user that the image runs as, by number: an orchestrator that must
// not run root can tell by it.
const nobody = "65532:65532"

// platform is a binary for an image.
type platform struct {
	target
	binary  string
	notices []byte
}

// image writes a container image for each platform, and the index of them, as a tar
// of an OCI layout. There is no shell and no other program in it. The certificates of
// authorities are there because engines may be asked over TLS.
func image(src source, platforms []platform, path string) error {
	dir, err := os.MkdirTemp("", "weir-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		img, err := p.image(src)
		if err != nil {
			return err
		}
		where, err := partial.Descriptor(img)
		if err != nil {
			return err
		}
		where.Platform = &v1.Platform{OS: p.os, Architecture: p.arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: *where})
	}
	outer := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": src.version, "io.containerd.image.name": "weir:" + src.version}},
	})
	if _, err := layout.Write(dir, outer); err != nil {
		return err
	}
	return write(path, func(w io.Writer) error { return pack(w, src, dir) })
}

// image makes one platform's image, of one layer.
func (p platform) image(src source) (v1.Image, error) {
	layer, err := p.layer(src)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = p.os, p.arch
	config.Created = v1.Time{Time: src.time}
	config.Config = v1.Config{
		User:       nobody,
		Entrypoint: []string{"/weir"},
		Cmd:        []string{"serve"},
		WorkingDir: "/",
		// The flight recorder of --profiles-dir costs less with the longest period (docs/watching.md).
		Env: []string{"PATH=/", "SSL_CERT_FILE=" + rootsPath, "GODEBUG=traceadvanceperiod=2100000000"},
		// The gateway must be reached from outside of its container, and by default it
		// listens on loopback: the flags say where (docs/install.md).
		ExposedPorts: map[string]struct{}{"8000/tcp": {}, "8001/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "weir",
			"org.opencontainers.image.version":  src.version,
			"org.opencontainers.image.revision": src.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	for i := range config.History {
		config.History[i].Created = config.Created
	}
	return mutate.ConfigFile(img, config)
}

const rootsPath = "/etc/ssl/certs/ca-certificates.crt"

// layer is the file system.
func (p platform) layer(src source) (v1.Layer, error) {
	var b bytes.Buffer
	t := newTape(&b, src.time)
	t.copy("weir", p.binary, 0o755)
	t.copy("LICENSE", filepath.Join(src.root, "LICENSE"), 0o644)
	t.text("THIRD_PARTY_LICENSES", p.notices, 0o644)
	t.folder("etc/")
	t.text("etc/passwd", []byte("root:x:0:0:root:/:/nonexistent\nweir:x:65532:65532:weir:/:/nonexistent\n"), 0o644)
	t.text("etc/group", []byte("root:x:0:\nweir:x:65532:\n"), 0o644)
	t.folder("etc/ssl/")
	t.folder("etc/ssl/certs/")
	t.text(rootsPath[1:], roots(), 0o644)
	if err := t.close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// roots are the certificates of the authorities that Mozilla trusts, in PEM.
func roots() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // trusted for some certificates only, which a file of PEM cannot say
		}
		pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
	}
	return b.Bytes()
}

// pack makes a tar of a folder.
func pack(w io.Writer, src source, dir string) error {
	t := newTape(w, src.time)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // by name
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			t.folder(filepath.ToSlash(name) + "/")
		} else {
			t.copy(filepath.ToSlash(name), path, 0o644)
		}
		return t.err
	})
	if err != nil {
		return err
	}
	return t.close()
}
