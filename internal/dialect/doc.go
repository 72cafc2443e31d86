// Package dialect is what the APIs of weir's callers have in common. Each API is a
// dialect with a package of its own (openai, anthropic), which knows how its
// bodies are read and its answers, streams and errors are written; here is what
// lies between a dialect and the gateway:
//
//   - [Endpoint] is a path of a dialect, all that the gateway is told of it;
//   - [Head] is what a body says to the gateway before the engine is known;
//   - [Request] is a body decoded for an engine that takes ids, whatever the
//     dialect. A conversation in it has the shape of OpenAI's messages, because
//     that is what chat templates take;
//   - [Encoder] appends the one answer of a request, streamed or whole;
//   - [Inspector] judges an answer that passes from an engine to the caller.
//
// Beside these are the parts that dialects are made of: reading JSON values with
// errors that name the place, appending JSON text, and what the engine must be
// told where a tool's call is forced.
//
// The package holds no connection and starts nothing.
package dialect
