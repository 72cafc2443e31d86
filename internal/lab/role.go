//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"weir/internal/lab/cell"
	"weir/internal/lab/client"
	"weir/internal/lab/control"
	"weir/internal/lab/flood"
	"weir/internal/lab/loadengine"
)

// LoopRole is the control that tokenizes on the loop that carries I/O. It takes a
// control.Loop.
const LoopRole = "gateway-loop"

// ReferenceRole is the reference engine. It takes a cell.Reference.
const ReferenceRole = "engine-reference"

// roles maps the roles of this program's processes to their functions.
func roles() map[string]func(spec string) error {
	return map[string]func(spec string) error{
		"engine-http":          told(loadengine.RunHTTP),
		"engine-plane":         told(loadengine.RunPlane),
		"engine-core":          told(loadengine.RunCore),
		ReferenceRole:          told(loadengine.RunReference),
		"flood":                told(flood.Run),
		"gateway-reverseproxy": told(control.RunReverseProxy),
		"gateway-latest":       told(control.RunLatest),
		"gateway-single":       told(control.RunSingle),
		LoopRole:               told(control.RunLoop),
		"client": told(func(c *cell.Cell) error {
			r, err := client.Run(c)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(r)
		}),
	}
}

// told makes a role from a function that takes a T, as JSON.
func told[T any](run func(*T) error) func(spec string) error {
	return func(spec string) error {
		t := new(T)
		if err := json.Unmarshal([]byte(spec), t); err != nil {
			return fmt.Errorf("what it is told: %w", err)
		}
		return run(t)
	}
}

// IsRole reports whether arguments are those of a process of a cell: a role and its
// specification as JSON.
func IsRole(args []string) bool { return len(args) == 2 && roles()[args[0]] != nil }

// RunRole runs a process of a cell. It serves until it is killed, except the client, which
// prints its result as JSON.
func RunRole(role, spec string) error {
	run := roles()[role]
	if run == nil {
		return fmt.Errorf("unknown role %q; the roles are %s", role, strings.Join(slices.Sorted(maps.Keys(roles())), ", "))
	}
	if _, err := RaiseFiles(); err != nil {
		return err
	}
	return run(spec)
}
