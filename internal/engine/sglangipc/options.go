package sglangipc

import (
	"cmp"
	"path/filepath"
	"time"

	"weir/internal/engine/coreclient"
	"weir/internal/wire/zmtp"
)

// The sockets' files, which the launcher names to the scheduler.
const (
	inputName  = "in"
	outputName = "out"
)

// Options say where an engine is to be met. Name and Dir are required; Model is the
// name to serve the engine's model under, empty: its own.
type Options struct {
	coreclient.Options

	// Dir is the folder of the sockets and of the launcher's word. It is made, for
	// this user alone, if it is not there.
	Dir string
	// EndIDs end an answer of the model's.
	EndIDs []uint32
	// Untried takes engines of releases that were not tried.
	Untried bool
	// AbortTimeout is how long the engine may take to end a generation that it
	// knows to be aborted; default 30 s.
	AbortTimeout time.Duration
	// WordInterval is the time between two looks for the launcher's word while an
	// engine is connected and loads; default 200 ms.
	WordInterval time.Duration
}

func (o Options) withDefaults() Options {
	o.Options = o.WithDefaults()
	o.AbortTimeout = cmp.Or(o.AbortTimeout, 30*time.Second)
	o.WordInterval = cmp.Or(o.WordInterval, 200*time.Millisecond)
	return o
}

func (o *Options) endpoint(name string) zmtp.Endpoint {
	return zmtp.Endpoint{Network: "unix", Address: filepath.Join(o.Dir, name)}
}
