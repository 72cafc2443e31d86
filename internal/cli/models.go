package cli

import (
	"fmt"
	"io/fs"
	"os"
	"sync"

	"weir/internal/config"
	"weir/internal/content"
	"weir/internal/model"
	"weir/models"
)

// loadModels reads the model folders, and the built-in one beside them.
func loadModels(specs []string) (map[string]*model.Folder, error) {
	loaded := map[string]*model.Folder{}
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
func loadModel(m *config.Model) (*model.Folder, error) {
	if info, err := os.Stat(m.Dir); err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--model: %s is a file; give the folder that holds tokenizer.json", m.Dir)
	}
	return readModel(m, os.DirFS(m.Dir))
}

// builtInModel is the one of the simulated engines. Nothing changes a model once it is
// read, so it is read once, whoever asks.
var builtInModel = sync.OnceValues(func() (*model.Folder, error) {
	return readModel(&config.Model{Name: models.SimName, Dir: "(built in)"}, models.Sim())
})

func readModel(m *config.Model, dir fs.FS) (*model.Folder, error) {
	folder, err := model.Load(m.Name, m.Aliases, dir)
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", m.Dir, err)
	}
	if err := folder.UseParsers(m.ToolParser, m.ReasoningParser); err != nil {
		return nil, wrongf("--model %s: %w", m.Dir, err)
	}
	if len(m.LoRA) > 0 {
		folder.LoRA = map[string]string{}
		for _, l := range m.LoRA {
			folder.LoRA[l.Name] = l.Path
		}
	}
	return folder, nil
}

// wordsOf is the list that simulated engines of a model make their output of, and
// that verifying clients check it with.
func wordsOf(m *model.Folder) (*content.Words, error) {
	w, err := content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return w, nil
}
