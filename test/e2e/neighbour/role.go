//go:build linux

package neighbour

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// roleVariable holds what a process that a test has started does, as JSON.
const roleVariable = "WEIR_E2E_NEIGHBOUR"

// role is what such a process does: one of the two. It reads its orders from standard
// input, ends with it, and prints what has become of it as lines of JSON.
type role struct {
	Target target
	Good   *goodOrder `json:",omitempty"`
	Bad    *badOrder  `json:",omitempty"`
}

// Role plays the role for which a Bed has started this process, and exits. It returns in all other
// processes.
func Role() {
	text, ok := os.LookupEnv(roleVariable)
	if !ok {
		return
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	switch {
	case err != nil:
	case r.Good != nil:
		err = runGood(r.Target, *r.Good)
	case r.Bad != nil:
		err = runBad(r.Target, *r.Bad)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process of the test's own program, which takes orders.
type child struct {
	*harness.Process
	orders *os.File
}

// start starts this program anew in a role.
func start(t *testing.T, r role) *child {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	in, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	t.Cleanup(func() { orders.Close() })
	cmd := exec.Command(program)
	cmd.Stdin = in
	cmd.Env = []string{roleVariable + "=" + string(text)}
	return &child{harness.StartCommand(t, cmd), orders}
}

// order gives the process an order.
func (c *child) order(word string) {
	c.T.Helper()
	if _, err := fmt.Fprintln(c.orders, word); err != nil {
		c.T.Fatal(err)
	}
}

// last reads the last line that the process has printed; there may be none yet.
func (c *child) last(into any) {
	c.T.Helper()
	out := c.Output()
	if out == "" {
		return
	}
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), into); err != nil {
		c.T.Fatalf("%v\n%.1000s", err, out)
	}
}

// end closes the process's input and wants it to end well.
func (c *child) end() {
	c.T.Helper()
	c.orders.Close()
	c.Exits(0)
}

// print prints a line of JSON, in a child.
func print(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types are this package's own
	}
	fmt.Println(string(text))
}
