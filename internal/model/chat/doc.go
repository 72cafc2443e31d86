// Package chat renders conversations into prompts with the chat template of a
// model, as Hugging Face transformers does; the engine is package jinja.
//
// A Set holds the templates of one model and is made once, when the model is
// loaded (ParseSet, Parse). Rendering takes the request's messages, tools and
// documents as the JSON the client sent: key order is kept and integers stay
// exact, because a template may print them. Both are safe for concurrent use
// and pure: no goroutine, no clock (Input.Now), no file.
//
// A model without a template is ErrNoTemplate, never a guess: a prompt in the
// wrong format is a silently worse model.
package chat
