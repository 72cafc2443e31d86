package outputparse_test

import (
	"fmt"

	"weir/internal/model/outputparse"
)

// An answer comes in pieces; content, reasoning and calls come out as soon as they
// are certain.
func ExampleParser() {
	format, _ := outputparse.Named("hermes", "think")
	p := outputparse.New(outputparse.Options{Format: format, Calls: true})
	var events []outputparse.Event
	pieces := []string{"<think>\nIt rains", ".\n</think>\n\nLet me see.\n", "<tool_", "call>\n{\"name\": \"weather\", ", "\"arguments\": {\"city\": \"Pa", "ris\"}}\n</tool_call>"}
	for i, piece := range pieces {
		events = p.Append(events[:0], []byte(piece), i == len(pieces)-1)
		for _, e := range events {
			switch e.Kind {
			case outputparse.CallBegin:
				fmt.Printf("call %d of %s\n", e.Call, e.Name)
			case outputparse.CallEnd:
				fmt.Printf("call %d ends, valid %v\n", e.Call, e.Valid)
			default:
				fmt.Printf("%v %q\n", e.Kind, e.Text)
			}
		}
	}
	// Output:
	// reasoning "It rains"
	// reasoning "."
	// content "Let me see."
	// call 0 of weather
	// arguments "{\"city\": \"Pa"
	// arguments "ris\"}"
	// call 0 ends, valid true
}

// A model's own chat template shows in which syntax it was trained to call tools.
func ExampleDetect() {
	f := outputparse.Detect("{%- for c in message.tool_calls %}<tool_call>\n{{ c | tojson }}\n</tool_call>{% endfor %}", func(token string) bool { return token == "<tool_call>" })
	fmt.Println(f.Tools(), f.Keeps("<tool_call>"), f.Keeps("<|im_end|>"))
	// Output:
	// hermes true false
}
