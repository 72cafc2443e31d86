package cli

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/model"
	"weir/models"
)

// servedModel is a model folder with its served names and the other settings of --model.
type servedModel struct {
	config.Model
	folder *model.Folder
}

// adapters returns the LoRA adapters that engines are asked to load: their paths by name.
func (m *servedModel) adapters() map[string]string {
	paths := map[string]string{}
	for _, l := range m.LoRA {
		paths[l.Name] = l.Path
	}
	return paths
}

// servedModels are the models that have a folder, by name.
type servedModels map[string]*servedModel

// find finds a model by its name or an alias, nil when there is none.
func (all servedModels) find(name string) *servedModel {
	for _, m := range all {
		if m.Name == name || slices.Contains(m.Aliases, name) {
			return m
		}
	}
	return nil
}

// folders are their folders, by name.
func (all servedModels) folders() map[string]*model.Folder {
	folders := map[string]*model.Folder{}
	for name, m := range all {
		folders[name] = m.folder
	}
	return folders
}

// parseModels reads the specifications of models, whose names must differ. The built-in
// model is the last, unless its name is given to another; it has no Dir.
func parseModels(specs []string) ([]config.Model, error) {
	var parsed []config.Model
	taken := map[string]string{} // names, by what has them
	for _, spec := range specs {
		m, err := config.ParseModel(spec)
		if err != nil {
			return nil, wrongf("--model: %w", err)
		}
		if info, err := os.Stat(m.Dir); m.Bare && (err != nil || !info.IsDir()) {
			m.Dir = ""
		}
		type holder struct{ name, what string }
		holders := []holder{{m.Name, cmp.Or(m.Dir, "model "+m.Name)}}
		for _, alias := range m.Aliases {
			holders = append(holders, holder{alias, "an alias of " + holders[0].what})
		}
		for _, l := range m.LoRA {
			holders = append(holders, holder{l.Name, "the LoRA adapter " + l.Path + " of " + m.Dir})
		}
		for _, h := range holders {
			switch by, ok := taken[h.name]; {
			case ok && by == h.what:
				return nil, wrongf("--model: the name %q is given to %s twice", h.name, h.what)
			case ok:
				return nil, wrongf("--model: the name %q is given to %s and to %s", h.name, by, h.what)
			}
			taken[h.name] = h.what
		}
		parsed = append(parsed, m)
	}
	if _, ok := taken[models.SimName]; !ok {
		parsed = append(parsed, config.Model{Name: models.SimName})
	}
	return parsed, nil
}

// loadModels reads the folders of the models that have one.
func loadModels(specs []config.Model) (loaded servedModels, err error) {
	loaded = servedModels{}
	for _, m := range specs {
		switch {
		case m.Dir != "":
			loaded[m.Name], err = loadModel(m)
		case m.Name == models.SimName:
			var built *servedModel
			if built, err = builtInModel(); err == nil {
				loaded[m.Name] = &servedModel{m, built.folder}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// loadModel reads a model's folder.
func loadModel(m config.Model) (*servedModel, error) {
	if info, err := os.Stat(m.Dir); err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--model: %s is a file; give the folder that holds tokenizer.json", m.Dir)
	}
	return readModel(m, disk.Folder(m.Dir))
}

// builtInModel is the model of the simulated engines. A model does not change after it is
// read, so it is read once.
var builtInModel = sync.OnceValues(func() (*servedModel, error) {
	return readModel(config.Model{Name: models.SimName}, models.Sim())
})

func readModel(m config.Model, files fs.FS) (*servedModel, error) {
	folder, err := model.Load(files)
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", m.Dir, err)
	}
	if err := folder.UseParsers(m.ToolParser, m.ReasoningParser); err != nil {
		return nil, wrongf("--model %s: %w", m.Dir, err)
	}
	return &servedModel{m, folder}, nil
}
