package api

import (
	"fmt"

	"weir/internal/infer"
)

// UnsupportedPart refuses a part of a conversation, or what stands for one, that
// holds media which the engines of the model do not take. What names it.
func UnsupportedPart(path, what, carrier string, kind infer.MediaKind) *infer.Error {
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s is not supported by %s for this model: %s input needs an engine that reads it itself and a model that understands it, behind kind sglang, or behind kind openai, which gets every part as it is", what, carrier, kind)}
}
