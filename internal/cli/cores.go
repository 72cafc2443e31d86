package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"weir/internal/config"
	"weir/internal/engine/fenced"
	"weir/internal/engine/sglangipc"
	"weir/internal/engine/vllmcore"
	"weir/internal/gateway"
	"weir/internal/zmtp"
)

// newVLLMCore makes the adapter of a vllm-core engine.
func newVLLMCore(e *config.Engine, served servedModels, g *gateway.Options) (*vllmcore.Engine, error) {
	o := vllmcore.Options{
		Options: coreOptions(e.Name, e.Model, g), Engines: e.Ranks, Lockstep: e.Lockstep, Priorities: e.Priority,
		Handshake: zmtp.Endpoint{Network: "tcp", Address: e.Addr},
	}
	if m := served.find(e.Model); m != nil {
		var err error
		o.EndIDs, o.Vocab, o.LoRA = m.folder.EndIDs(), m.folder.VocabSize, m.adapters()
		if o.Defaults, err = samplingDefaults(m.folder.Files); err != nil {
			return nil, err
		}
	}
	if err := o.Place(); err != nil {
		return nil, wrongf("--engine vllm-core=tcp://%s: %w", e.Addr, err)
	}
	return vllmcore.New(o), nil
}

// newSGLangIPC makes the adapter of an sglang-ipc engine.
func newSGLangIPC(e *config.Engine, served servedModels, g *gateway.Options) (*sglangipc.Engine, error) {
	o := sglangipc.Options{Options: coreOptions(e.Name, e.Model, g), Dir: e.Dir, Untried: e.Untried}
	if m := served.find(e.Model); m != nil {
		var err error
		if o.Defaults, err = samplingDefaults(m.folder.Files); err != nil {
			return nil, err
		}
	}
	return sglangipc.New(o), nil
}

// coreOptions are those that all engines without their front end have.
func coreOptions(name, model string, g *gateway.Options) fenced.Options {
	return fenced.Options{Name: name, Model: model, Batch: g.Batch, Warn: func(message string) { g.Log.Warn(message) }}
}

// samplingDefaults are what a model's folder says is drawn by where a request does
// not say.
func samplingDefaults(folder fs.FS) (d fenced.Defaults, err error) {
	const name = "generation_config.json"
	b, err := fs.ReadFile(folder, name)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("%s: %w", name, err)
	}
	if err := d.Check(); err != nil {
		return d, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
