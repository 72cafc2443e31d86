// Package dialect defines what the APIs of weir's callers have in common. Each API is
// a dialect with a package of its own (openai, anthropic), which reads the API's
// bodies and writes its answers, streams and errors. This package holds what the
// gateway sees of every dialect:
//
//   - [Endpoint] is a path of a dialect, and everything that the gateway knows of it;
//   - [Head] is what the gateway reads of a body before it has chosen an engine;
//   - [Request] is a body decoded for an engine that takes ids, whatever the
//     dialect. A conversation in it has the shape of OpenAI's messages, because
//     that is what chat templates take;
//   - [Encoder] appends the answer of a request, streamed or whole;
//   - [Inspector] judges an answer that passes from an engine to the caller.
//
// The package also has the parts of which dialects are made: readers of JSON values
// whose errors name the place, writers of JSON text, and the guides that force a
// tool's call.
//
// The package holds no connection and starts no goroutine.
package dialect
