package prepare

import (
	"cmp"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/tenancy"
)

// Folder returns the model folder of a model; nil: it is not known.
func (pr *Preparer) Folder(m *route.Model) *model.Folder {
	if m.Loaded != nil {
		return m.Loaded.Folder
	}
	return pr.opts.Models[cmp.Or(m.Base, m.Name)]
}

// LookUp finds a model by its name. One that the caller may not use is not there for it. One that
// cannot be served comes with an error.
func LookUp(fleet *route.Snapshot, name string, c *tenancy.Caller) (*route.Model, error) {
	model := fleet.Models[name]
	if model == nil || !c.Uses(name, model.Name) {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", dialect.Clip(name, 128), ServedModels(fleet, c))
		e.Param = "model"
		return nil, e
	}
	if model.Fault != "" {
		return model, infer.Errorf(infer.CodeUnavailable, "model %q cannot be served: its engine %s", model.Name, model.Fault)
	}
	return model, nil
}

// onlyModel returns the model for a body that names none: the only model that is
// served, not counting adapters.
func onlyModel(fleet *route.Snapshot, c *tenancy.Caller) (name string, err error) {
	switch models := Served(fleet, c); len(models) {
	case 0:
		return "", infer.Errorf(infer.CodeUnavailable, "no engine has joined yet")
	case 1:
		return models[0].Name, nil
	}
	return "", infer.Invalid("model", "the body names no model, and there are several; add a field model: %s", ServedModels(fleet, c))
}

// ServedModels names the models that an engine has joined for and the caller may use.
func ServedModels(snap *route.Snapshot, c *tenancy.Caller) string {
	names := slices.DeleteFunc(snap.Names(), func(name string) bool { return !snap.Models[name].Known() || !c.Uses(name, snap.Models[name].Name) })
	switch {
	case len(names) == 0:
		return "no engine has joined yet"
	case len(names) > 20:
		names = append(names[:20:20], "...")
	}
	return "the models here are " + strings.Join(names, ", ")
}

// Served returns the models that engines have joined for and the caller may use, each once and
// without their LoRA adapters.
func Served(snap *route.Snapshot, c *tenancy.Caller) (models []*route.Model) {
	for _, name := range snap.Names() {
		if m := snap.Models[name]; m.Known() && m.Name == name && m.Base == "" && c.Uses(name) { // no alias
			models = append(models, m)
		}
	}
	return models
}
