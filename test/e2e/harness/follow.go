package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"weir/internal/workload/content"
)

// Follow reads a stream of a chat to its end and checks every word of it. After each
// event with text it calls seen, where there is one, with the words until then.
func Follow(words *content.Words, body io.Reader, seen func(words int)) (tokens int, err error) {
	v := words.Verifier()
	done, finished, usage, begun := false, false, -1, 0
	for lines := bufio.NewReader(body); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF && line == "" {
			break
		}
		if err != nil {
			return v.Words(), err
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
			continue
		case done:
			return v.Words(), fmt.Errorf("%.80q after [DONE]", data)
		case data == "[DONE]":
			done = true
			continue
		}
		var event struct {
			Error   json.RawMessage
			Choices []struct {
				Delta        struct{ Content string }
				FinishReason *string `json:"finish_reason"`
			}
			Usage *struct {
				CompletionTokens int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return v.Words(), err
		}
		if event.Error != nil {
			return v.Words(), fmt.Errorf("error event %s", event.Error)
		}
		for _, choice := range event.Choices {
			_, _ = v.WriteString(choice.Delta.Content) // what is wrong shows at the close
			if n := strings.Count(choice.Delta.Content, " "); n > 0 && seen != nil {
				begun += n // a word begins with its space
				seen(begun)
			}
			finished = finished || choice.FinishReason != nil
		}
		if event.Usage != nil {
			usage = event.Usage.CompletionTokens
		}
	}
	if err := v.Close(); err != nil {
		return v.Words(), err
	}
	if !done || !finished || usage != v.Words() {
		return v.Words(), fmt.Errorf("done %t, finished %t, usage %d of %d words", done, finished, usage, v.Words())
	}
	return v.Words(), nil
}
