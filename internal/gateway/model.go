package gateway

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

	"weir/internal/chat"
	"weir/internal/chat/parse"
	"weir/internal/content"
	"weir/internal/tokenizer"
)

// Model is a model folder ready to serve: how its prompts are rendered, and its
// text turned into ids and back.
type Model struct {
	Name    string
	Aliases []string
	// LoRA are the adapters of it that engines are told to load, by name: where they
	// find them.
	LoRA   map[string]string
	Folder fs.FS
	*tokenizer.Model
	Templates *chat.Set // nil: the model takes completions only
	// Format is how the model writes tool calls and reasoning, as its templates
	// and vocabulary tell; UseFormat sets another.
	Format parse.Format

	// The special tokens that the format's parser must see.
	keepForCalls, keepForReasoning []uint32

	encoders sync.Pool // of *encoder
}

// LoadModel reads a model folder. Its errors name the file and the place in it.
func LoadModel(name string, aliases []string, dir fs.FS) (*Model, error) {
	folder, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	var sources []chat.Named
	for _, name := range slices.Sorted(maps.Keys(folder.ChatTemplates)) {
		sources = append(sources, chat.Named{Name: name, Source: folder.ChatTemplates[name]})
	}
	templates, err := chat.ParseSet(sources, chat.Options{})
	if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return nil, err
	}
	m := &Model{Name: name, Aliases: aliases, Folder: dir, Model: folder, Templates: templates}
	if templates != nil {
		all := ""
		for _, s := range sources {
			all += s.Source + "\n"
		}
		m.UseFormat(m.chooseFormat(parse.Detect(all, func(token string) bool {
			_, ok := folder.Tokenizer.ID(token)
			return ok
		})))
	}
	return m, nil
}

// UseParsers sets the syntax of tool calls and that of reasoning by their names;
// an empty name leaves what the folder tells, and none is none.
func (m *Model) UseParsers(tools, reasoning string) error {
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
			return "", fmt.Errorf("there is no %s %q; there are none, %s", option, name, strings.Join(known, ", "))
		}
		return name, nil
	}
	if tools == "harmony" && reasoning == "" {
		reasoning = tools // they are one thing
	}
	tools, err := choose("tool-parser", tools, m.Format.Tools(), parse.ToolNames())
	if err != nil {
		return err
	}
	reasoning, err = choose("reasoning-parser", reasoning, m.Format.Reasoning(), parse.ReasoningNames())
	if err != nil {
		return err
	}
	f, ok := parse.Named(tools, reasoning)
	if !ok {
		return errors.New("tool-parser and reasoning-parser are both harmony, or neither is")
	}
	m.UseFormat(f)
	return nil
}

// UseFormat sets how the model writes tool calls and reasoning.
func (m *Model) UseFormat(f parse.Format) {
	m.Format, m.keepForCalls, m.keepForReasoning = f, nil, nil
	for id := range uint32(m.Tokenizer.Size()) {
		if !m.Tokenizer.Special(id) {
			continue
		}
		token := string(m.Tokenizer.TokenBytes(id))
		if f.Keeps(token) {
			m.keepForCalls = append(m.keepForCalls, id)
		}
		if f.WithoutTools().Keeps(token) {
			m.keepForReasoning = append(m.keepForReasoning, id)
		}
	}
}

// encoder is a tokenizer's encoder with room for the ids of a prompt.
type encoder struct {
	*tokenizer.Encoder
	ids []uint32
}

// keepIDs bounds the room that an idle encoder keeps.
const keepIDs = 1 << 18

// tokens encodes a text on the calling goroutine. The ids live as long as their
// stream, so they are given no more room than they need.
func (m *Model) tokens(ctx context.Context, text []byte, o tokenizer.EncodeOptions) ([]uint32, error) {
	enc, _ := m.encoders.Get().(*encoder)
	if enc == nil {
		enc = &encoder{Encoder: m.Tokenizer.NewEncoder()}
	}
	defer m.encoders.Put(enc)
	enc.ids = slices.Grow(enc.ids[:0], len(text)/4+8)
	ids, err := enc.EncodeBytes(ctx, enc.ids, text, o)
	if enc.ids = ids; cap(ids) > keepIDs {
		enc.ids = nil
	}
	return append(make([]uint32, 0, len(ids)), ids...), err
}

// Encode gives the ids of a text: of a rendered prompt, which has its special tokens
// from the template, or with those that the model's post-processor adds.
func (m *Model) Encode(text string, addSpecial bool) ([]uint32, error) {
	return m.tokens(context.Background(), []byte(text), tokenizer.EncodeOptions{AddSpecial: addSpecial})
}

// Text gives the bytes of an id.
func (m *Model) Text(id uint32) []byte { return m.Tokenizer.TokenBytes(id) }

// Render gives the prompt of a chat: its messages and its tools are JSON
// arrays, and kwargs is an object whose entries become variables of the
// template. Tools and kwargs may be empty.
func (m *Model) Render(messages, tools, kwargs []byte) (string, error) {
	text, err := m.render(context.Background(), &chat.Input{
		Messages: messages, Tools: tools, Kwargs: kwargs, AddGenerationPrompt: true, FromAPI: true,
	})
	return string(text), err
}

// render applies the model's chat template.
func (m *Model) render(ctx context.Context, in *chat.Input) ([]byte, error) {
	template, err := m.Templates.Select("", len(in.Tools) > 0)
	if err != nil {
		return nil, err
	}
	in.SpecialTokens, in.Now = m.SpecialTokens, time.Now()
	return template.Render(ctx, nil, in)
}

// Words is the list that simulated engines make their output of and verifying
// clients check it with.
func (m *Model) Words() (*content.Words, error) {
	w, err := content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return w, nil
}

// Speaker says what simulated engines say besides words; mode, think and
// meanTokens are the engine's.
func (m *Model) Speaker(w *content.Words, mode content.Mode, think content.Effort, meanTokens int) (*content.Speaker, error) {
	s, err := w.Speaker(content.SpeakerOptions{
		Size: m.VocabSize, Text: m.Text, Ordinary: m.Tokenizer.OrdinaryBytes,
		Mode: mode, Think: think, MeanTokens: meanTokens,
	})
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return s, nil
}
