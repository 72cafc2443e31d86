package cli

import (
	"fmt"
	"io/fs"
	"os"
	"sync"

	"weir/internal/config"
	"weir/internal/gateway"
	"weir/models"
)

// loadModels reads the model folders, and the built-in one beside them.
func loadModels(specs []string) (map[string]*gateway.Model, error) {
	loaded := map[string]*gateway.Model{}
	taken := map[string]string{}
	take := func(m *config.Model) error {
		names := append([]string{m.Name}, m.Aliases...)
		for _, l := range m.LoRA {
			names = append(names, l.Name)
		}
		for _, name := range names {
			if by, ok := taken[name]; ok {
				return wrongf("--model: the name %q is given to %s and to %s", name, by, m.Dir)
			}
			taken[name] = m.Dir
		}
		return nil
	}
	for _, spec := range specs {
		m, err := config.ParseModel(spec)
		if err != nil {
			return nil, wrongf("--model: %w", err)
		}
		if err := take(&m); err != nil {
			return nil, err
		}
		if loaded[m.Name], err = loadModel(&m); err != nil {
			return nil, err
		}
	}
	if _, ok := taken[models.SimName]; !ok {
		m, err := builtInModel()
		if err != nil {
			return nil, err
		}
		loaded[m.Name] = m
	}
	return loaded, nil
}

// loadModel reads a model's folder.
func loadModel(m *config.Model) (*gateway.Model, error) {
	if info, err := os.Stat(m.Dir); err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--model: %s is a file; give the folder that holds tokenizer.json", m.Dir)
	}
	return readModel(m, os.DirFS(m.Dir))
}

// builtInModel is the one of the simulated engines. Nothing changes a model once it is
// read, so it is read once, whoever asks.
var builtInModel = sync.OnceValues(func() (*gateway.Model, error) {
	return readModel(&config.Model{Name: models.SimName, Dir: "(built in)"}, models.Sim())
})

func readModel(m *config.Model, dir fs.FS) (*gateway.Model, error) {
	model, err := gateway.LoadModel(m.Name, m.Aliases, dir)
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", m.Dir, err)
	}
	if err := model.UseParsers(m.ToolParser, m.ReasoningParser); err != nil {
		return nil, wrongf("--model %s: %w", m.Dir, err)
	}
	if len(m.LoRA) > 0 {
		model.LoRA = map[string]string{}
		for _, l := range m.LoRA {
			model.LoRA[l.Name] = l.Path
		}
	}
	return model, nil
}
