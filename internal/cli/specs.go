package cli

import (
	"log/slog"
	"slices"
	"strings"

	"weir/internal/config"
)

// parseEngines reads the specifications of engines, including those of lists, and gives
// each a unique name. An engine whose host name stands for several counts as one here.
func parseEngines(specs []string) ([]config.Engine, error) {
	lists, err := readLists(specs, nil)
	if err != nil {
		return nil, err
	}
	engines := make([]config.Engine, 0, len(specs))
	for _, spec := range specs {
		each := []string{spec}
		if path, list := strings.CutPrefix(spec, "file="); list {
			each = lists[path]
		}
		for _, spec := range each {
			e, err := config.ParseEngine(spec)
			if err != nil {
				return nil, wrongf("--engine: %w", err)
			}
			engines = append(engines, e)
		}
	}
	config.Unique(len(engines), func(i int) string { return engines[i].Name }, func(i int, to string) { engines[i].Name = to })
	return engines, nil
}

// warnOfTwins logs each engine that is at the place of another one and serves the same
// model. Both are given requests, as if there were two.
func warnOfTwins(engines []config.Engine, log *slog.Logger) {
	first := map[string]string{}
	for _, e := range engines {
		place := e.Addr + e.Dir
		if e.URL != nil {
			place = e.URL.String()
		}
		if e.Model != "" {
			place += " for " + e.Model
		}
		if other, twice := first[place]; twice {
			log.Warn("engine is given twice, counts as two and gets the requests of two: leave one of them out", "engine", e.Name, "other", other, "at", place)
			continue
		}
		first[place] = e.Name
	}
}

// agree judges engines and models together, before any folder is read. It sets the model of
// an engine without its front end if the specification does not: the only model that was
// given. That engine is another value then.
func agree(engines []*config.Wanted, served []config.Model) error {
	told := map[string]bool{} // models whose adapters an engine is told to load
	for i, e := range engines {
		spec := ""
		switch e.Kind {
		case "sglang-ipc":
			spec = "sglang-ipc=" + e.Dir
		case "vllm-core":
			spec = "vllm-core=tcp://" + e.Addr
		default:
			continue
		}
		if e.Model == "" {
			given := slices.DeleteFunc(slices.Clone(served), func(m config.Model) bool { return m.Dir == "" })
			if len(given) != 1 {
				return wrongf("--engine %s: add model=NAME, with a name given by --model: the engine does not report what it serves", spec)
			}
			e = new(*e)
			e.Model, engines[i] = given[0].Name, e
		}
		told[e.Model] = told[e.Model] || e.Kind == "vllm-core"
	}
	for _, m := range served {
		asked := func(name string) bool { return told[name] }
		if len(m.LoRA) > 0 && !told[m.Name] && !slices.ContainsFunc(m.Aliases, asked) {
			return wrongf("--model %s,lora=...: weir can make only engines of kind vllm-core load adapters, and this model has none. Start other engines with their adapters (SGLang: --lora-paths, vLLM's server: --lora-modules); weir then serves the adapters' names", m.Name)
		}
	}
	return nil
}
