// Package outputparse takes an answer's text apart as it is generated: what the model
// says to the caller, what it says to itself, and the tools it calls.
//
// A model writes all three as one text, in a syntax of its family: tags,
// special tokens, JSON, calls as in Python. A Format says which syntax a model
// has, by its chat template and vocabulary (Detect) or by name (Named). A Parser
// reads one answer in pieces and gives events: content, reasoning, and for each
// call its beginning with the name, its arguments as JSON in fragments as they
// come, and its end.
//
// What holds for every format and every text:
//
//   - The events are the same however the text is cut into pieces, once the
//     fragments of a span are joined.
//   - Every byte is syntax or is in exactly one event, in order. What does not
//     parse is content. Text that begins like a call and turns out not to be one
//     is content up to the byte that does not fit, and is read on from there.
//   - White space before a marker, line breaks after one, and nothing but white
//     space between two are syntax: the model's own template writes them and
//     would write them again when the answer comes back in a conversation. (Not
//     in harmony, whose messages are framed exactly.) Since the API has one
//     content for all of an answer, a line break is put before what follows a
//     call, and likewise before more reasoning.
//   - A call that has ended with Valid has arguments that are valid JSON.
//     Otherwise its arguments are what the model said, which the caller can see:
//     either the answer was cut within the call, and they are a beginning, or the
//     model's JSON is wrong, and they are its words up to the end of the call.
//     Control characters within strings of JSON, which models write and JSON
//     forbids, are escaped and do no harm.
//   - Time is linear in the text. What is held back is bounded: the beginning of
//     a marker; the beginning of a call up to its name; of a JSON object that
//     has its name last, and of a parameter in tags whose type is not a string,
//     the value, up to 256 KiB. Longer ones are content, and a string.
//   - Plain content allocates nothing.
//
// The parser sees text with the markers in it. Where they are special tokens of
// the vocabulary, the detokenizer must not skip them: Format.Keeps says which.
//
// docs/parsers.md has the syntax of each format, what is taken as what, and how
// other parsers differ.
package outputparse
