//go:build !linux

package cli

import (
	"context"
	"errors"

	"weir/internal/experiment"
	"weir/internal/load"
)

type testFleet struct{ url, admin string }

func (*testFleet) stop() {}

func (*testFleet) warm(context.Context, load.Plan, int) error { return nil }

func startFleet(context.Context, *experiment.Experiment, experiment.Cell) (*testFleet, error) {
	return nil, errors.New("--experiment needs Linux: its processes end with this one by means of its kernel")
}
