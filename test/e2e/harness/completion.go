package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Completion is what a client received of a stream of a completion.
type Completion struct {
	Text   string
	Finish string
	Tokens int    // of the usage
	Failed string // the message of an error event
	Done   bool   // the end marker came
}

// Complete asks a model for a stream of a completion, with more fields of the
// body, and reads the stream to its end or until stop reports true. A status other
// than 200 is an error that has the status and the body.
func (g *Gateway) Complete(ctx context.Context, model, fields string, stop func(c *Completion) bool) (c Completion, err error) {
	body := `{"model":"` + model + `","prompt":"Say it.","stream":true,"stream_options":{"include_usage":true}` + fields + `}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return c, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		return c, fmt.Errorf("%s: %s", resp.Status, b)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			c.Done = true
			continue
		}
		if err := c.take([]byte(data)); err != nil {
			return c, err
		}
		if stop != nil && stop(&c) {
			return c, nil
		}
	}
	return c, lines.Err()
}

// take adds an event.
func (c *Completion) take(data []byte) error {
	var e struct {
		Choices []struct {
			Text   string
			Finish string `json:"finish_reason"`
		}
		Usage *struct {
			Completion int `json:"completion_tokens"`
		}
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%q: %w", data, err)
	}
	for _, choice := range e.Choices {
		c.Text += choice.Text
		c.Finish += choice.Finish
	}
	if e.Usage != nil {
		c.Tokens = e.Usage.Completion
	}
	if e.Error != nil {
		c.Failed = e.Error.Message
	}
	return nil
}

// Says asks for n sentences from an engine that repeats these ids, and returns an error unless the
// whole answer is there.
func (g *Gateway) Says(ctx context.Context, ids []uint32, n int) error {
	c, err := g.Complete(ctx, "weir-sim", fmt.Sprintf(`,"max_tokens":%d`, n*len(ids)), nil)
	switch {
	case err != nil:
		return err
	case !c.Done || c.Failed != "" || c.Finish != "length" || c.Tokens != n*len(ids):
		return fmt.Errorf("%+v", c)
	case c.Text != strings.Repeat(Said, n):
		return fmt.Errorf("text %q", c.Text)
	}
	return nil
}
