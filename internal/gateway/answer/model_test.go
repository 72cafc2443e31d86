package answer

import (
	"context"
	"sync"

	"weir/internal/model/outputparse"
	"weir/internal/model/tokenizer"
	"weir/models"
)

// testModel is the built-in model folder, read once, and testFormat how it writes
// reasoning and calls.
var testModel = sync.OnceValue(func() *tokenizer.Model {
	m, err := tokenizer.Load(models.Sim())
	if err != nil {
		panic(err)
	}
	return m
})

var testFormat, _ = outputparse.Named("hermes", "think")

func encodeText(text string) ([]uint32, error) {
	return testModel().Tokenizer.NewEncoder().EncodeBytes(context.Background(), nil, []byte(text), tokenizer.EncodeOptions{})
}

// keptTokens are the special tokens that a format's parser must see.
func keptTokens(f outputparse.Format) (kept []uint32) {
	t := testModel().Tokenizer
	for id := range uint32(t.Size()) {
		if t.Special(id) && f.Keeps(string(t.TokenBytes(id))) {
			kept = append(kept, id)
		}
	}
	return kept
}
