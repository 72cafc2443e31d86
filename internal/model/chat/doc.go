// Package chat renders conversations into prompts with the chat template of a model, as
// Hugging Face transformers does. Package jinja is the template engine.
//
// A Set holds the templates of one model and is made once, when the model is
// loaded (ParseSet, Parse). Rendering takes the request's messages, tools and
// documents as the JSON the client sent: key order is kept and integers stay
// exact, because a template may print them. Both are safe for concurrent use
// and pure: no goroutine, no clock (Input.Now), no file.
//
// Templates differ in what they take of a conversation. Parse renders canaries to find
// what a template takes (canary.go). Messages of the API's get a form that it takes
// (form.go, shape.go), or are refused by name. Template.Takes is the table of it.
//
// For a model without a template the error is ErrNoTemplate. The format is never
// guessed, because a prompt in the wrong format silently makes the answers worse.
package chat
