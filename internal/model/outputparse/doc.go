// Package outputparse splits the text of an answer, while it is generated, into
// content, reasoning and tool calls.
//
// A model writes all three as one text, in a syntax of its family: tags, special
// tokens, JSON, calls as in Python. A Format is the syntax of a model, found by its
// chat template and vocabulary (Detect) or by name (Named). A Parser reads one answer
// in pieces and returns events: content, reasoning, and for each call its begin with
// the name, fragments of its arguments as JSON, and its end.
//
// These properties hold for every format and every text:
//
//   - The events are the same however the text is cut into pieces, once the
//     fragments of a span are joined.
//   - Every byte either is syntax or is in exactly one event, in order. Text that does
//     not parse is content. Text that begins like a call and turns out not to be one is
//     content up to the byte that does not fit, and is read on from there.
//   - White space before a marker, line breaks after one or at the answer's beginning, and
//     nothing but white space between two are syntax: the model's own template writes them
//     and would write them again when the answer comes back in a conversation. (Not in
//     harmony, whose messages are framed exactly.) Since the API has a single content per
//     answer, a line break is inserted before content that follows a call, and likewise
//     before further reasoning.
//   - A call names a tool of the request. Otherwise it is text.
//   - A call that has ended with Valid has arguments that are valid JSON. Otherwise its
//     arguments are the model's own text, and the caller can see that they are invalid:
//     either the answer was cut within the call, and they are its beginning, or the
//     model wrote invalid JSON, and they are the text up to the end of the call.
//     Control characters within JSON strings, which models write and JSON forbids, are
//     escaped.
//   - Time is linear in the text. The text that is held back is bounded. It is the
//     beginning of a marker with white space before it (maxEdge), the beginning of a call
//     up to its name or that of a parameter, a value in tags that may be a number or a word
//     (maxScalar), or an object that has its name last, or none (maxHeld, 256 KiB). A
//     longer object becomes content.
//   - Plain content allocates nothing.
//
// The parser needs the markers in the text. If they are special tokens of the
// vocabulary, the detokenizer must not skip them: Format.Keeps lists them.
//
// docs/parsers.md describes the syntax of each format, how text is classified, and how
// other parsers differ.
package outputparse
