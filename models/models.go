// Package models holds the model folders that are built into weir: those weir
// can ship honestly, because it made them itself.
package models

import (
	"embed"
	"io/fs"
)

// SimName is the folder of the simulated engine's model, and the name the
// model is served under when nobody gives another.
const SimName = "weir-sim"

//go:embed weir-sim/*.json weir-sim/*.jinja
var folders embed.FS

// Sim returns the model folder of the simulated engine, in the form of any
// Hugging Face model folder on disk.
func Sim() fs.FS {
	sub, err := fs.Sub(folders, SimName)
	if err != nil {
		panic("models: " + err.Error()) // the name is a constant and valid
	}
	return sub
}
