// Package jinja renders chat templates: the part of Jinja2 that models' chat
// templates are written in, byte-equal with Jinja2 3.1 in the environment that
// Hugging Face transformers builds for them (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, the generation tag, transformers' tojson,
// raise_exception and strftime_now).
//
// # Goal
//
// A prompt that differs by one byte silently makes the answers worse. The package
// therefore implements the reference's exact semantics, even where they are surprising:
// Python's repr of floats and dictionaries, code-point slices, scopes that end with
// their loop, an else branch that runs after a loop whose every turn ended in continue.
// Unsupported features are refused by name when the template is parsed; they are never
// ignored.
//
// # Form
//
// Parse goes source -> tokens -> tree -> closures. Names are resolved to slots
// when the template is compiled, by the reference's own rules of which scope a
// name belongs to (symbols.go). A Template is immutable and safe for any
// number of concurrent renderings; everything a rendering changes is in its
// state.
//
// # Bounds
//
// A template comes from a model's folder and runs on a conversation from a client, so
// neither is trusted. A rendering counts steps, bytes written and bytes of the values
// it creates, and ends with an error of KindLimit when it exceeds a limit in Options.
// Options.Check is called every 1024 steps, which is how a caller cancels. The package
// starts no goroutine, reads no clock (Options.Now) and opens nothing.
//
// # Not supported
//
// Statements: block, extends, include, import, from, autoescape. Filters: pprint,
// random, striptags, urlize, wordwrap. Globals: lipsum, self. Format operations on a
// string marked safe. Where Python prints an address (generators, functions), the text
// omits it.
package jinja
