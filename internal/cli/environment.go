package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"weir/internal/infer/spell"
)

// serviceLink matches the variables that Kubernetes gives each container for a Service,
// such as one named weir or weir-admin.
var serviceLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)`)

// unknownEnvironment returns a warning for each variable of the environment that seems meant
// for weir and sets no flag of any command.
func unknownEnvironment(app *kong.Application, environment []string) (warnings []string) {
	known := []string{"WEIR_ADMIN_KEY"} // which admin_client.go reads
	_ = kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known = append(known, flag.Envs...)
		}
		return next(nil)
	})
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "WEIR_") || value == "" || slices.Contains(known, name) || serviceLink.MatchString(name) {
			continue
		}
		warning := fmt.Sprintf("the environment variable %s sets no flag and is ignored", name)
		if near := spell.Nearest(name, known, (len(name)-len("WEIR_"))/3); near != "" {
			warning += fmt.Sprintf(" (did you mean %s?)", near)
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}
