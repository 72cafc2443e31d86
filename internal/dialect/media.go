package dialect

import (
	"fmt"

	"weir/internal/infer"
)

// TakesMedia says whether the engines take media of a kind, or refuses what holds
// some, which is named as its type names it.
func (d *Decoding) TakesMedia(path, what string, kind infer.MediaKind) error {
	if d.Carries&kind.Carries() != 0 {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path, Lacks: kind.Carries(),
		Message: fmt.Sprintf("%s is not supported by %s for this model: %s input needs an engine that reads it itself and a model that understands it, behind kind sglang, or behind kind openai, which gets every part as it is", what, d.Carrier(), kind)}
}
