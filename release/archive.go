package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// archive writes what somebody installs by hand: the binary, the licences, the
// systemd unit and an example of a configuration.
func archive(src source, path, binary string, notices []byte) error {
	folder := strings.TrimSuffix(filepath.Base(path), ".tar.gz") + "/"
	return write(path, func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		t := newTape(z, src.time)
		t.folder(folder)
		t.copy(folder+"weir", binary, 0o755)
		t.copy(folder+"LICENSE", filepath.Join(src.root, "LICENSE"), 0o644)
		t.text(folder+"THIRD_PARTY_LICENSES", notices, 0o644)
		t.copy(folder+"CHANGELOG.md", filepath.Join(src.root, "CHANGELOG.md"), 0o644)
		t.copy(folder+"weir.service", filepath.Join(src.root, "integrations/systemd/weir.service"), 0o644)
		if err := t.close(); err != nil {
			return err
		}
		return z.Close()
	})
}

// write makes a file by what fill writes, and leaves none where that fails.
func write(path string, fill func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := fill(f); err != nil {
		f.Close()
		os.Remove(path)
		return err
	}
	return f.Close()
}

// A tape writes a tar whose bytes depend on names, modes and contents alone: it has
// one time for all, and root as the owner. It keeps the first error.
type tape struct {
	w    *tar.Writer
	time time.Time
	err  error
}

func newTape(w io.Writer, at time.Time) *tape { return &tape{w: tar.NewWriter(w), time: at} }

func (t *tape) head(name string, kind byte, mode, size int64) {
	if t.err == nil {
		t.err = t.w.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: size, ModTime: t.time, Format: tar.FormatUSTAR})
	}
}

func (t *tape) folder(name string) { t.head(name, tar.TypeDir, 0o755, 0) }

func (t *tape) text(name string, text []byte, mode int64) {
	t.head(name, tar.TypeReg, mode, int64(len(text)))
	if t.err == nil {
		_, t.err = t.w.Write(text)
	}
}

func (t *tape) copy(name, path string, mode int64) {
	if t.err != nil {
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		t.err = err
		return
	}
	t.head(name, tar.TypeReg, mode, info.Size())
	if t.err == nil {
		t.err = copyFile(t.w, path)
	}
}

func (t *tape) close() error {
	if t.err != nil {
		return t.err
	}
	return t.w.Close()
}

// checksums writes SHA256SUMS, which sha256sum --check reads.
func checksums(out string) error {
	const name = "SHA256SUMS"
	entries, err := os.ReadDir(out) // by name
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		hash := sha256.New()
		if err := copyFile(hash, filepath.Join(out, e.Name())); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", hash.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(out, name), sums.Bytes(), 0o644)
}
