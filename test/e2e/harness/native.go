package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Native is an object of /generate: an event, or a whole answer.
type Native struct {
	Text *string
	IDs  []uint32 `json:"output_ids"`
	Meta struct {
		ID     string
		Finish *struct {
			Type    string
			Matched any
			Message string
			Status  int `json:"status_code"`
		} `json:"finish_reason"`
		Prompt     int     `json:"prompt_tokens"`
		Completion int     `json:"completion_tokens"`
		Latency    float64 `json:"e2e_latency"`
	} `json:"meta_info"`
}

// NativeResult is the content of an answer of /generate, and whether its end marker came.
type NativeResult struct {
	Text   string
	IDs    []uint32
	Last   Native
	events int
	Done   bool
}

// NativeAnswer reads an answer of either form and checks each event's count.
func NativeAnswer(a Answer, stream, incremental bool) (got NativeResult, err error) {
	take := func(data []byte) error {
		var e Native
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("%w: %.200s", err, data)
		}
		text := ""
		if e.Text != nil {
			text = *e.Text
		}
		if incremental {
			text, e.IDs = got.Text+text, append(got.IDs, e.IDs...)
		} else if !strings.HasPrefix(text, got.Text) || len(e.IDs) < len(got.IDs) {
			return fmt.Errorf("an event takes back what was told: %.200s", data)
		}
		unsent := 0
		if f := e.Meta.Finish; f != nil && f.Matched != nil {
			if _, byID := f.Matched.(float64); byID {
				unsent = 1
			}
		}
		if len(e.IDs)+unsent != e.Meta.Completion {
			return fmt.Errorf("%d ids told and %d counted: %.300s", len(e.IDs), e.Meta.Completion, data)
		}
		got.Text, got.IDs, got.Last = text, e.IDs, e
		got.events++
		return nil
	}
	if !stream {
		return got, take(a.Body)
	}
	for line := range bytes.Lines(a.Body) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		switch {
		case !ok:
		case got.Done:
			return got, fmt.Errorf("something follows the end marker: %.200s", data)
		case string(data) == "[DONE]":
			got.Done = true
		default:
			if err := take(data); err != nil {
				return got, err
			}
		}
	}
	return got, nil
}

// wantAborted wants a stream that ended with an abort on a broken connection,
// after at least this many ids that are counted exactly.
func WantAborted(t *testing.T, a Answer, least int) {
	t.Helper()
	got, err := NativeAnswer(a, true, false)
	if f := got.Last.Meta.Finish; err != nil || a.Err == nil || got.Done || f == nil || f.Type != "abort" || f.Message == "" || f.Status < 500 || len(got.IDs) < least {
		t.Errorf("%v, read error %v: %.300s ... %+v", err, a.Err, a.Body, got.Last.Meta)
	}
}
