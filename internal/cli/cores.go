package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/sglangipc"
	"weir/internal/engine/vllmcore"
	"weir/internal/gateway"
	"weir/internal/wire/zmtp"
)

// newVLLMCore makes the adapter of a vllm-core engine.
func newVLLMCore(e *config.Engine, served servedModels, g *gateway.Options) (*vllmcore.Engine, error) {
	o := vllmcore.Options{
		Options: coreOptions(e.Name, e.Model, g), Engines: e.Ranks, Lockstep: e.Lockstep, Priorities: e.Priority, Speculative: e.Speculative, AskHalves: e.Halves.Ask(),
		Handshake: zmtp.Endpoint{Network: "tcp", Address: e.Addr},
	}
	if m := served.find(e.Model); m != nil {
		a, err := m.additions()
		if err != nil {
			return nil, err
		}
		o.EndIDs, o.Defaults, o.Vocab, o.LoRA = a.EndIDs, a.Defaults, m.folder.VocabSize, m.adapters()
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
		a, err := m.additions()
		if err != nil {
			return nil, err
		}
		o.EndIDs, o.Defaults = a.EndIDs, a.Defaults
	}
	return sglangipc.New(o), nil
}

// coreOptions are the options of all engines without their own front end.
func coreOptions(name, model string, g *gateway.Options) coreclient.Options {
	return coreclient.Options{Name: name, Model: model, Batch: g.Stream.Batch, Panicked: panicked(name, g), Warn: func(message string) { g.Log.Warn(message) }}
}

// additions returns what an engine's own front end would add from the model's folder.
func (m *servedModel) additions() (a engine.Additions, err error) {
	a.EndIDs = m.folder.EndIDs()
	if a.Defaults, err = samplingDefaults(m.folder.Files); err != nil {
		return a, fmt.Errorf("model %s: %w", m.Name, err)
	}
	if m.folder.Templates != nil {
		a.Prompts = func(messages, tools []byte) ([]uint32, error) {
			text, err := m.folder.Render(messages, tools, nil)
			if err != nil {
				return nil, err
			}
			return m.folder.Encode(text, false)
		}
	}
	return a, nil
}

// additions are those of every model, found by name or alias.
func (all servedModels) additions() (func(model string) engine.Additions, error) {
	of := map[*servedModel]engine.Additions{}
	for _, m := range all {
		var err error
		if of[m], err = m.additions(); err != nil {
			return nil, err
		}
	}
	return func(model string) engine.Additions { return of[all.find(model)] }, nil
}

// samplingDefaults returns the sampling parameters that a model's folder sets for requests
// that do not.
func samplingDefaults(folder fs.FS) (d engine.Defaults, err error) {
	const name = "generation_config.json"
	f, err := folder.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	defer f.Close()
	b, err := disk.ReadAll(f, name, 0, disk.MaxSettings)
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
