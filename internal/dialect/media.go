package dialect

import (
	"fmt"

	"weir/internal/infer"
)

// TakesMedia returns an error if the engines do not take media of a kind. The error
// names the part of the request as what.
func (d *Decoding) TakesMedia(path, what string, kind infer.MediaKind) error {
	if d.Carries&kind.Carries() != 0 {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path, Lacks: kind.Carries(),
		Message: fmt.Sprintf("%s is not supported by %s for this model: %s input needs an engine that reads it itself and a model that understands it, behind kind sglang, or behind kind openai, which gets every part as it is", what, d.Carrier(), kind)}
}
