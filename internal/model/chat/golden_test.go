package chat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/internal/infer"
)

// request is one file of testdata/conversations.
type request struct {
	Messages             json.RawMessage   `json:"messages"`
	Tools                json.RawMessage   `json:"tools"`
	Documents            json.RawMessage   `json:"documents"`
	Kwargs               json.RawMessage   `json:"kwargs"`
	AddGenerationPrompt  bool              `json:"add_generation_prompt"`
	ContinueFinalMessage bool              `json:"continue_final_message"`
	Tokens               map[string]string `json:"tokens"`
}

func (r *request) input() *Input {
	return &Input{
		Messages: r.Messages, Tools: r.Tools, Documents: r.Documents, Kwargs: r.Kwargs,
		AddGenerationPrompt: r.AddGenerationPrompt, ContinueFinalMessage: r.ContinueFinalMessage,
		SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
		// The time that the reference's strftime_now shows.
		Now: time.Date(2026, 3, 7, 5, 6, 9, 12345000, time.UTC),
	}
}

func readRequest(t testing.TB, name string) *Input {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "conversations", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var r request
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return r.input()
}

func readTemplate(t testing.TB, name string) *Template {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "templates", name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(string(raw), Options{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tmpl
}

// TestGolden renders every conversation with every template and compares with
// the reference.
func TestGolden(t *testing.T) {
	goldens, err := filepath.Glob("testdata/golden/*.golden.jsonl")
	if err != nil || len(goldens) < 12 {
		t.Fatalf("goldens: %v, %v", goldens, err)
	}
	texts := 0
	for _, path := range goldens {
		name := strings.TrimSuffix(filepath.Base(path), ".golden.jsonl")
		t.Run(name, func(t *testing.T) {
			tmpl := readTemplate(t, name)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			sc := bufio.NewScanner(f)
			sc.Buffer(nil, 1<<24)
			for sc.Scan() {
				var row struct {
					Conversation, Error, Message string
					Text                         *string
				}
				if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
					t.Fatal(err)
				}
				got, err := tmpl.Render(context.Background(), nil, readRequest(t, row.Conversation))
				if row.Text != nil {
					texts++
					if err != nil {
						t.Errorf("%s: %v\nwant %q", row.Conversation, err, *row.Text)
					} else if string(got) != *row.Text {
						t.Errorf("%s:\n got %q\nwant %q", row.Conversation, got, *row.Text)
					}
					continue
				}
				var e *infer.Error
				if !errors.As(err, &e) || e.Code != infer.CodeInvalid {
					t.Errorf("%s: got %v, want an invalid request: %s: %s", row.Conversation, err, row.Error, row.Message)
				} else if row.Error == "Raised" && e.Message != row.Message {
					t.Errorf("%s: got %q, want the template's %q", row.Conversation, e.Message, row.Message)
				}
			}
			if sc.Err() != nil {
				t.Fatal(sc.Err())
			}
		})
	}
	if texts < 100 {
		t.Errorf("only %d conversations rendered to a text", texts)
	}
}
