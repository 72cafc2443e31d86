package prepare

import (
	"context"
	"errors"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/tenancy"
	"weir/models"
)

// An error of the tokenizer names the field that the text came from. A client that leaves while its
// prompt is encoded has cancelled.
func TestTokenizerErrors(t *testing.T) {
	for _, field := range []string{"messages", "prompt"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		p := &preparing{preparer: new(Preparer), Prepared: &Prepared{Folder: simFolder(t)}, in: Input{Caller: tenancy.Anyone, Endpoint: openai.Chat}, ctx: ctx}
		p.Request = &dialect.Request{Fields: &dialect.FieldNames{Prompt: field}}
		p.to.Model = &route.Model{Name: models.SimName}
		var got *infer.Error
		if _, err := p.promptIDs(field, nil, []byte("good \xff bad"), nil); !errors.As(err, &got) || got.Code != infer.CodeInvalid || got.Param != field {
			t.Errorf("%v, param %q; want %q", err, got.Param, field)
		}
		cancel(nil)
		if _, err := p.promptIDs(field, nil, []byte("good"), nil); !errors.As(err, &got) || got.Code != infer.CodeCancelled {
			t.Errorf("after the hang-up: %v", err)
		}
	}
}

// simFolder is the folder of the built-in model.
func simFolder(t *testing.T) *model.Folder {
	t.Helper()
	m, err := model.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	return m
}
