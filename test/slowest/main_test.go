package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata")

// Each testdata/*.json is what go test -json printed, some of it shortened and
// with other times; beside it lie what slowest makes of it and the figures.
func TestRun(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".json")
		t.Run(filepath.Base(name), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			kept := filepath.Join(t.TempDir(), "figures")
			var out, errs bytes.Buffer
			rc := run([]string{"-n", "3", "-figures", kept}, bytes.NewReader(in), &out, &errs)
			fmt.Fprintf(&out, "%sexit %d\n", errs.String(), rc)
			figures, err := os.ReadFile(kept)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", out.Bytes())
			golden(t, name+".figures", figures)
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s, -want +got (go test ./test/slowest -rewrite writes it anew):\n%s", file, diff)
	}
}

// TestAgain: the output ends as go test's does.
func TestAgain(t *testing.T) {
	for name, want := range map[string]string{
		"passed": "\nok  \texample.org/shop/good\t5.006s\n",
		"failed": "\nFAIL\texample.org/shop/broken [build failed]\nok  \texample.org/shop/good\t5.006s\nFAIL\texample.org/shop/bad\t0.410s\nFAIL\n",
	} {
		in, err := os.Open(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		var out, errs bytes.Buffer
		run([]string{"-again"}, in, &out, &errs)
		if text := out.String(); !strings.Contains(text, "slowest packages:") || !strings.HasSuffix(text, "\n"+want) {
			t.Errorf("%s ends with %q, want %q", name, text[max(0, len(text)-300):], want)
		}
	}
}

func TestRunErrors(t *testing.T) {
	const passed = `{"Action":"pass","Package":"a","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"a"}` + "\n"
	for _, c := range []struct {
		args []string
		rc   int
		says string
	}{
		{[]string{"./..."}, 2, "pipe go test -json into it"},
		{[]string{"-race"}, 2, "usage: go test -json"},
		{[]string{"-figures", filepath.Join(t.TempDir(), "none", "figures")}, 1, "no such file or directory"},
	} {
		var out, errs bytes.Buffer
		if rc := run(c.args, strings.NewReader(passed), &out, &errs); rc != c.rc || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%q exits %d and says %q, want %d and %q", c.args, rc, errs.String(), c.rc, c.says)
		}
	}
	var out, errs bytes.Buffer
	if rc := run(nil, iotest.ErrReader(errors.New("broken pipe")), &out, &errs); rc != 1 || !strings.Contains(errs.String(), "broken pipe") {
		t.Errorf("of an input that cannot be read: exit %d, %q", rc, errs.String())
	}
}
