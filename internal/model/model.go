// Package model loads a model folder, as it is published beside a model's weights. The
// folder's chat template renders conversations to prompts, and its tokenizer encodes
// and decodes text. The template and the vocabulary also determine the syntax in which
// the model calls tools and reasons, and so how its answers are parsed.
package model

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/internal/model/chat"
	"weir/internal/model/outputparse"
	"weir/internal/model/tokenizer"
)

// Folder is a model folder ready to use. It has no name: that belongs to whoever
// serves the model. Its methods may be called concurrently once
// it is set up.
type Folder struct {
	*tokenizer.Model
	Files     fs.FS
	Templates *chat.Set // nil: the model takes completions only
	// Format is the syntax of the model's tool calls and reasoning, found from its
	// templates and vocabulary. UseFormat sets another.
	Format outputparse.Format

	keptForCalls, keptForReasoning []uint32 // as KeptTokens gives them
	reasons                        bool     // unless its prompt says otherwise

	encoders sync.Pool // of *encoder
}

// Load reads a model folder. Its errors name the file and the place in it.
func Load(dir fs.FS) (*Folder, error) {
	read, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	var sources []chat.Named
	for _, name := range slices.Sorted(maps.Keys(read.ChatTemplates)) {
		sources = append(sources, chat.Named{Name: name, Source: read.ChatTemplates[name]})
	}
	templates, err := chat.ParseSet(sources, chat.Options{})
	if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return nil, err
	}
	m := &Folder{Model: read, Files: dir, Templates: templates}
	if templates != nil {
		all := ""
		for _, s := range sources {
			all += s.Source + "\n"
		}
		m.UseFormat(m.chooseFormat(outputparse.Detect(all, func(token string) bool {
			_, ok := read.Tokenizer.ID(token)
			return ok
		})))
	}
	return m, nil
}

// UseParsers sets the syntax of tool calls and of reasoning by name. An empty name
// leaves what the folder determines, and "none" disables parsing.
func (m *Folder) UseParsers(tools, reasoning string) error {
	if tools == "" && reasoning == "" {
		return nil
	}
	choose := func(option, name, found string, known []string) (string, error) {
		switch {
		case name == "":
			return found, nil
		case name == "none":
			return "", nil
		case !slices.Contains(known, name):
			return "", fmt.Errorf("there is no %s %q; the choices are none, %s", option, name, strings.Join(known, ", "))
		}
		return name, nil
	}
	if reasoning == "" && outputparse.Framed(tools) {
		reasoning = tools // they are one thing
	}
	tools, err := choose("tool-parser", tools, m.Format.Tools(), outputparse.ToolNames())
	if err != nil {
		return err
	}
	reasoning, err = choose("reasoning-parser", reasoning, m.Format.Reasoning(), outputparse.ReasoningNames())
	if err != nil {
		return err
	}
	f, ok := outputparse.Named(tools, reasoning)
	if !ok {
		return errors.New("harmony and muse-glimmer read answers that consist of messages: tool-parser and reasoning-parser are both the same one, or neither is one of them")
	}
	m.UseFormat(f)
	return nil
}

// UseFormat sets how the model writes tool calls and reasoning.
func (m *Folder) UseFormat(f outputparse.Format) {
	m.Format, m.keptForCalls, m.keptForReasoning = f, nil, nil
	m.reasons = m.Templates != nil && m.closesReasoning()
	for id := range uint32(m.Tokenizer.Size()) {
		if !m.Tokenizer.Special(id) {
			continue
		}
		token := string(m.Tokenizer.TokenBytes(id))
		if f.Keeps(token) {
			m.keptForCalls = append(m.keptForCalls, id)
		}
		if f.WithoutTools().Keeps(token) {
			m.keptForReasoning = append(m.keptForReasoning, id)
		}
	}
}

// KeptTokens are the special tokens that the format's parser must see in an answer,
// with calls of one that may call tools.
func (m *Folder) KeptTokens(calls bool) []uint32 {
	if calls {
		return m.keptForCalls
	}
	return m.keptForReasoning
}

// encoder is a tokenizer's encoder with room for the ids of a prompt.
type encoder struct {
	*tokenizer.Encoder
	ids []uint32
}

// keepIDs bounds the room that an idle encoder keeps.
const keepIDs = 1 << 18

// EncodeBytes encodes a text on the calling goroutine. The ids live as long as their
// stream, so they are given no more room than they need.
func (m *Folder) EncodeBytes(ctx context.Context, text []byte, o tokenizer.EncodeOptions) ([]uint32, error) {
	enc, _ := m.encoders.Get().(*encoder)
	if enc == nil {
		enc = &encoder{Encoder: m.Tokenizer.NewEncoder()}
	}
	defer m.encoders.Put(enc)
	room := len(text)/4 + 8
	if o.Most > 0 {
		room = min(room, o.Most)
	}
	enc.ids = slices.Grow(enc.ids[:0], room)
	ids, err := enc.EncodeBytes(ctx, enc.ids, text, o)
	if enc.ids = ids; cap(ids) > keepIDs {
		enc.ids = nil
	}
	if err != nil {
		return nil, err
	}
	own := make([]uint32, len(ids)) // which the compiler does not clear, as a copy follows
	copy(own, ids)
	return own, nil
}

// Encode returns the ids of a text: of a rendered prompt, which has its special tokens
// from the template, or with those that the model's post-processor adds.
func (m *Folder) Encode(text string, addSpecial bool) ([]uint32, error) {
	return m.EncodeBytes(context.Background(), []byte(text), tokenizer.EncodeOptions{AddSpecial: addSpecial})
}

// EndIDs are the ids that end an answer, the tokenizer's own first.
func (m *Folder) EndIDs() []uint32 {
	ids := slices.Clone(m.EOS)
	if own, ok := m.Tokenizer.ID(m.EOSToken); ok {
		if i := slices.Index(ids, own); i > 0 {
			ids[0], ids[i] = ids[i], ids[0]
		}
	}
	return ids
}

// Text returns the bytes of an id.
func (m *Folder) Text(id uint32) []byte { return m.Tokenizer.TokenBytes(id) }

// Render returns the prompt of a chat: its messages and its tools are JSON arrays, and
// kwargs is an object whose entries become variables of the template. Tools and kwargs
// may be empty.
func (m *Folder) Render(messages, tools, kwargs []byte) (string, error) {
	text, err := m.RenderChat(context.Background(), &chat.Input{
		Messages: messages, Tools: tools, Kwargs: kwargs, AddGenerationPrompt: true, FromAPI: true,
	})
	return string(text), err
}

// RenderChat applies the model's chat template.
func (m *Folder) RenderChat(ctx context.Context, in *chat.Input) ([]byte, error) {
	template, err := m.Templates.Select("", len(in.Tools) > 0)
	if err != nil {
		return nil, err
	}
	in.SpecialTokens, in.Now = m.SpecialTokens, time.Now()
	in.CallIDs = m.Format.CallIDs()
	return template.Render(ctx, nil, in)
}
