package prepare

import (
	"regexp"
	"testing"

	"weir/internal/model"
	"weir/internal/model/outputparse"
)

// The id of a call has the form that the model's template takes back.
func TestCallIDsOfTemplates(t *testing.T) {
	format, _ := outputparse.Named("mistral", "mistral")
	q := &Prepared{Folder: &model.Folder{Format: format}}
	if id := q.CallID("f", 0); !regexp.MustCompile(`^[0-9A-Za-z]{9}$`).MatchString(id) {
		t.Errorf("mistral's id %q", id)
	}
	format, _ = outputparse.Named("kimi-k2", "think")
	q = &Prepared{Folder: &model.Folder{Format: format}, calls: 2}
	if id := q.CallID("f", 1); id != "functions.f:3" {
		t.Errorf("the id of Kimi's fourth call is %q", id)
	}
}
