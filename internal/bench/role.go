//go:build linux

package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"weir/internal/bench/cell"
	"weir/internal/bench/client"
	"weir/internal/bench/control"
	"weir/internal/bench/loadengine"
)

// InlineRole is the control that tokenizes on the request's goroutine.
const InlineRole = "gateway-inline"

// roles are what a process of a cell can be when it is this program itself.
func roles() map[string]func(*cell.Cell) error {
	return map[string]func(*cell.Cell) error{
		"engine-relay":         loadengine.RunRelay,
		"engine-plane":         loadengine.RunPlane,
		"engine-core":          loadengine.RunCore,
		"gateway-reverseproxy": control.RunReverseProxy,
		"gateway-latest":       control.RunLatest,
		"gateway-single":       control.RunSingle,
		InlineRole:             control.RunInline,
		"client": func(c *cell.Cell) error {
			r, err := client.Run(c)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(r)
		},
	}
}

// IsRole says whether arguments are those of a process of a cell: a role and
// the cell as JSON.
func IsRole(args []string) bool { return len(args) == 2 && roles()[args[0]] != nil }

// RunRole is a process of a cell. It serves until it is killed, but for the
// client, which prints its result as JSON.
func RunRole(role, spec string) error {
	run := roles()[role]
	if run == nil {
		return fmt.Errorf("unknown role %q; the roles are %s", role, strings.Join(slices.Sorted(maps.Keys(roles())), ", "))
	}
	c := new(cell.Cell)
	if err := json.Unmarshal([]byte(spec), c); err != nil {
		return fmt.Errorf("the cell: %w", err)
	}
	if _, err := RaiseFiles(); err != nil {
		return err
	}
	return run(c)
}
