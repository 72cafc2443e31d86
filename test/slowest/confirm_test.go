package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ended returns the events of a package in which each of tests ended with an action
// and with output, written as "TestName action output".
func ended(pkg, action string, tests ...string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, t := range tests {
		name, rest, _ := strings.Cut(t, " ")
		verdict, output, _ := strings.Cut(rest, " ")
		line(`{"Action":"run","Package":%q,"Test":%q}`, pkg, name)
		line(`{"Action":"output","Package":%q,"Test":%q,"Output":%q}`, pkg, name, output+"\n")
		if verdict != "" {
			line(`{"Action":%q,"Package":%q,"Test":%q,"Elapsed":1}`, verdict, pkg, name)
		}
	}
	last := map[string]string{"pass": "ok  \t" + pkg + "\t1.000s\n", "fail": "FAIL\t" + pkg + "\t1.000s\n"}[action]
	line(`{"Action":"output","Package":%q,"Output":%q}`, pkg, last)
	line(`{"Action":%q,"Package":%q,"Elapsed":1}`, action, pkg)
	return b.String()
}

func TestConfirm(t *testing.T) {
	const fails = "TestB fail     b_test.go:7: late"
	once := ended("shop/a", "pass", "TestA pass") + ended("shop/b", "fail", "TestB0 pass", fails)
	twice := ended("shop/b", "pass", "TestB pass", "TestB pass")
	for _, c := range []struct {
		name       string
		first      string
		second     string // what the second look prints
		secondExit int
		called     string // with which arguments, "" if no second look may be taken
		rc         int
		says, not  []string
	}{
		{"unsteady", once, twice, 0, "shop/b ^(TestB)$", 0,
			[]string{"b_test.go:7: late", "failed: 0", "unsteady: failed among", "\n  shop/b TestB\n", "\n\nok  \tshop/a\t1.000s\nok  \tshop/b\t1.000s\n"}, []string{"failed:\n"}},
		{"two of a package", ended("shop/b", "fail", fails, "TestC fail c"), ended("shop/b", "pass", "TestB pass", "TestC pass"), 0, "shop/b ^(TestB|TestC)$", 0,
			[]string{"\n  shop/b TestB\n  shop/b TestC\n"}, nil},
		{"fails again", once, ended("shop/b", "fail", fails), 1, "shop/b ^(TestB)$", 1,
			[]string{"not confirmed as unsteady: exit status 1", "failed:\n  shop/b TestB\n", "\nFAIL\tshop/b\t1.000s\nFAIL\n"}, []string{"unsteady: failed"}},
		{"fails the first time of two", once, twice, 1, "shop/b ^(TestB)$", 1, []string{"failed:\n  shop/b TestB\n"}, nil},
		{"does not run", once, ended("shop/b", "pass"), 0, "shop/b ^(TestB)$", 1, []string{"they did not run"}, nil},
		{"prints nothing", once, "", 0, "shop/b ^(TestB)$", 1, []string{"they did not run"}, nil},
		{"a race", ended("shop/b", "fail", "TestB fail WARNING: DATA RACE"), twice, 0, "", 1, []string{"failed:\n  shop/b TestB\n"}, nil},
		{"a panic", ended("shop/b", "fail", "TestB fail panic: nil map"), twice, 0, "", 1, nil, nil},
		{"no end", ended("shop/b", "fail", "TestB  waits"), twice, 0, "", 1, nil, nil},
		{"a package", ended("shop/b", "fail", "TestB pass"), twice, 0, "", 1, []string{"failed:\n  shop/b\n"}, nil},
		{"a package beside a test", once + ended("shop/c", "fail", "TestC pass"), twice, 0, "", 1, []string{"failed:\n  shop/b TestB\n  shop/c\n"}, nil},
		{"four", ended("shop/b", "fail", fails, "TestC fail", "TestD fail", "TestE fail"), twice, 0, "", 1, []string{"failed: 4"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			program, printed, args := filepath.Join(dir, "confirm"), filepath.Join(dir, "printed"), filepath.Join(dir, "args")
			script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%s\ncat %s\nexit %d\n", args, printed, c.secondExit)
			if err := os.WriteFile(printed, []byte(c.second), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			rc := run([]string{"-again", "-confirm", program}, strings.NewReader(c.first), &out, &errs)
			called, _ := os.ReadFile(args)
			if rc != c.rc || strings.TrimSpace(string(called)) != c.called {
				t.Errorf("exit %d, called with %q; want %d and %q\n%s%s", rc, called, c.rc, c.called, out.String(), errs.String())
			}
			for _, words := range c.says {
				if !strings.Contains(out.String(), words) {
					t.Errorf("it does not say %q:\n%s", words, out.String())
				}
			}
			for _, words := range c.not {
				if strings.Contains(out.String(), words) {
					t.Errorf("it says %q:\n%s", words, out.String())
				}
			}
		})
	}
}
