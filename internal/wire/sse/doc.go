// Package sse is the framing of server-sent events: the stream of lines that
// carries the chunks of a streamed answer.
//
// An event is a block of lines ended by a blank line. Lines end with LF, CRLF or a lone
// CR, mixed at will, and a network may cut the stream at any byte, also between a CR
// and its LF. The package has two types:
//
//   - [Splitter] finds, in bytes that pass through untouched, where whole
//     events end, so that a relay never forwards half an event before something
//     of its own;
//   - [Parser] parses events for a client.
//
// A lone CR ends its line at once, and an LF that follows belongs to the same line end.
// No event therefore waits for a byte that might never be sent.
package sse

// bom may stand once, before the first line, and is no part of it.
const bom = "\xEF\xBB\xBF"

// DoneMarker is the data of the event that ends a stream of the OpenAI API.
const DoneMarker = "[DONE]"
