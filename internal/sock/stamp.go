//go:build unix

package sock

import "errors"

// ErrNoStamps says that this system does not tell when bytes arrived.
var ErrNoStamps = errors.New("receive stamps need Linux")
