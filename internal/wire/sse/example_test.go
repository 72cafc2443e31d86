package sse_test

import (
	"fmt"

	"weir/internal/wire/sse"
)

// A client takes a stream apart as it comes, whatever the network cut.
func ExampleParser() {
	var p sse.Parser
	for _, chunk := range []string{"data: {\"n\":", "1}\n", "\nda", "ta: [DONE]\n\n"} {
		p.Feed([]byte(chunk))
		for ev, ok := p.Next(); ok; ev, ok = p.Next() {
			fmt.Printf("%s\n", ev.Data)
		}
		if err := p.Err(); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("cut:", p.Partial())
	// Output:
	// {"n":1}
	// [DONE]
	// cut: false
}

// A relay forwards whole events only, and knows where it may put something of its
// own before the end of the stream.
func ExampleSplitter() {
	var s sse.Splitter
	var held []byte
	for _, chunk := range []string{"data: 1\n\ndata", ": 2\n\ndata: [DO", "NE]\n\n"} {
		held = append(held, chunk...)
		r := s.Feed([]byte(chunk))
		fmt.Printf("%d events in %q, done %v\n", r.Events, held[:r.Len], r.Done)
		held = held[r.Len:]
	}
	// Output:
	// 1 events in "data: 1\n\n", done false
	// 1 events in "data: 2\n\n", done false
	// 1 events in "data: [DONE]\n\n", done true
}
