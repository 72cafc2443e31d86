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
	"weir/internal/engine/vllmcore"
	"weir/internal/gateway"
	"weir/internal/zmtp"
	"weir/models"
)

// newVLLMCore makes the adapter of a vllm-core engine. Its wire does not say what
// model it serves: that is what the engine's specification says, or the only model
// whose folder was given.
func newVLLMCore(e *config.Engine, g *gateway.Options) (*vllmcore.Engine, error) {
	folders := g.Models
	if e.Model == "" {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(folders)), func(name string) bool { return name == models.SimName })
		if len(names) != 1 {
			return nil, wrongf("--engine vllm-core=tcp://%s: add model=NAME, one of those given with --model: engine cores do not say what they serve", e.Addr)
		}
		e.Model = names[0]
	}
	o := vllmcore.Options{
		Name: e.Name, Model: e.Model, Engines: e.Ranks, Lockstep: e.Lockstep, Batch: g.Batch, Warn: func(message string) { g.Log.Warn(message) },
		Handshake: zmtp.Endpoint{Network: "tcp", Address: e.Addr},
	}
	if m := folderOf(folders, e.Model); m != nil {
		o.EndIDs, o.Vocab = endIDs(m), m.VocabSize
		var err error
		if o.Defaults, err = samplingDefaults(m.Folder); err != nil {
			return nil, err
		}
	}
	if err := o.Place(); err != nil {
		return nil, wrongf("--engine vllm-core=tcp://%s: %w", e.Addr, err)
	}
	return vllmcore.New(o), nil
}

// folderOf finds a model by its name or an alias.
func folderOf(folders map[string]*gateway.Model, name string) *gateway.Model {
	for _, m := range folders {
		if m.Name == name || slices.Contains(m.Aliases, name) {
			return m
		}
	}
	return nil
}

// endIDs are the ids that end an answer, the tokenizer's own first.
func endIDs(m *gateway.Model) []uint32 {
	ids := slices.Clone(m.EOS)
	if own, ok := m.Tokenizer.ID(m.EOSToken); ok {
		if i := slices.Index(ids, own); i > 0 {
			ids[0], ids[i] = ids[i], ids[0]
		}
	}
	return ids
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
