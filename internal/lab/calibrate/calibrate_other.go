//go:build !linux

package calibrate

import (
	"context"
	"errors"

	"weir/internal/load"
)

// Run measures the generator, where it can.
func Run(context.Context, Options) (*load.Calibration, error) {
	return nil, errors.New("calibrating needs Linux: the engine of known times is made of its system calls")
}
