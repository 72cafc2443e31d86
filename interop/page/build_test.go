//go:build interop

package page

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The operators' page that weir embeds is what its sources build, byte by byte, and its
// types hold.
func TestPageIsBuiltFromItsSources(t *testing.T) {
	const sources = "../../internal/observe/page"
	in := func(name string, args ...string) {
		t.Helper()
		c := exec.Command(name, args...)
		c.Dir = sources
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v; make interop-ready fetches what it needs\n%s", name, args, err, out)
		}
	}
	built := t.TempDir()
	in("node", "build.mjs", built)
	in("node", "node_modules/typescript/bin/tsc", "--noEmit")
	want, err := os.ReadDir(filepath.Join(sources, "dist"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadDir(built)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%d files are built, %d are committed", len(got), len(want))
	}
	for _, f := range want {
		committed, err := os.ReadFile(filepath.Join(sources, "dist", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if fresh, err := os.ReadFile(filepath.Join(built, f.Name())); err != nil || !bytes.Equal(fresh, committed) {
			t.Errorf("dist/%s is another than what is built from its sources (%v): run make page, and commit it", f.Name(), err)
		}
	}
}
