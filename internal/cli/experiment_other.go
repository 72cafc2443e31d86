//go:build !linux

package cli

import (
	"context"
	"errors"

	"weir/internal/load"
	"weir/internal/load/experiment"
)

type testFleet struct{ url, admin string }

func (*testFleet) stop() {}

func (*testFleet) warm(context.Context, load.Plan, int) error { return nil }

func startFleet(context.Context, *experiment.Experiment, experiment.Cell) (*testFleet, error) {
	return nil, errors.New("experiments need Linux, whose kernel ends their processes together with this one")
}
