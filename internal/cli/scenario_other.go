//go:build !linux

package cli

import "errors"

// benchProcessCommand is a process of a scenario, where there are any.
type benchProcessCommand struct{}

// Run implements the command.
func (benchProcessCommand) Run() error { return errNoScenarios }

func (*scenarioCommand) run(*streams) error { return errNoScenarios }

var errNoScenarios = errors.New("scenarios need Linux: delays are measured with its kernel's receive stamps, CPU and memory with /proc")
