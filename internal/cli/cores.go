package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"weir/internal/config"
	"weir/internal/engine/fenced"
	"weir/internal/engine/sglangipc"
	"weir/internal/engine/vllmcore"
	"weir/internal/gateway"
	"weir/internal/zmtp"
	"weir/models"
)

// newVLLMCore makes the adapter of a vllm-core engine.
func newVLLMCore(e *config.Engine, served servedModels, g *gateway.Options) (*vllmcore.Engine, error) {
	m, err := theModel(e, served, "vllm-core=tcp://"+e.Addr)
	if err != nil {
		return nil, err
	}
	o := vllmcore.Options{
		Options: coreOptions(e.Name, e.Model, g), Engines: e.Ranks, Lockstep: e.Lockstep, Priorities: e.Priority,
		Handshake: zmtp.Endpoint{Network: "tcp", Address: e.Addr},
	}
	if m != nil {
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
	m, err := theModel(e, served, "sglang-ipc="+e.Dir)
	if err != nil {
		return nil, err
	}
	o := sglangipc.Options{Options: coreOptions(e.Name, e.Model, g), Dir: e.Dir, Untried: e.Untried}
	if m != nil {
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

// theModel sets what an engine without its front end serves, which it does not say
// under a name of weir's: that is what its specification says, or the only model
// whose folder was given. That is nil when no folder has that name.
func theModel(e *config.Engine, served servedModels, spec string) (*servedModel, error) {
	if e.Model == "" {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(served)), func(name string) bool { return name == models.SimName })
		if len(names) != 1 {
			return nil, wrongf("--engine %s: add model=NAME, one of those given with --model: the engine does not say what it serves", spec)
		}
		e.Model = names[0]
	}
	return served.find(e.Model), nil
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
