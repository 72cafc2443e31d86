package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The files of a model folder that are read.
const (
	fileTokenizer  = "tokenizer.json"
	fileTokConfig  = "tokenizer_config.json"
	fileGeneration = "generation_config.json"
	fileConfig     = "config.json"
	fileTemplate   = "chat_template.jinja"
	dirTemplates   = "additional_chat_templates"
)

// node is a value of a JSON file with its place, so that every error can name
// both.
type node struct {
	file  string
	path  string // JSON pointer
	value jsontext.Value
	// part is set if the value was read as a part of another, by which it is known to
	// be JSON whose objects have no name twice. Vocabularies are large: they are
	// checked once.
	part bool
}

// errorf makes an error about the node.
func (n node) errorf(format string, args ...any) error {
	path := n.path
	if path == "" {
		path = "/"
	}
	return fmt.Errorf("%s: %s: %s", n.file, path, fmt.Sprintf(format, args...))
}

// unsupported makes the error of something known to exist and not built.
func (n node) unsupported(what string) error {
	return n.errorf("%s is not supported, and loading without it would give other ids", what)
}

// at returns the node of a member, whose value the node's own reading gave.
func (n node) at(path string, value jsontext.Value) node {
	return node{n.file, n.path + path, value, true}
}

// each reads the elements of a member that is an array, in their order.
func (n node) each(member string, values []jsontext.Value, read func(node) error) error {
	for i, value := range values {
		if err := read(n.at(fmt.Sprintf("/%s/%d", member, i), value)); err != nil {
			return err
		}
	}
	return nil
}

// null reports whether the value is absent or null.
func (n node) null() bool { return len(n.value) == 0 || n.value.Kind() == 'n' }

// decode reads the value; members that into has no field for are errors.
func (n node) decode(into any) error {
	return n.read(into, json.RejectUnknownMembers(true))
}

// scan reads what into has fields for.
func (n node) scan(into any) error { return n.read(into) }

func (n node) read(into any, opts ...json.Options) error {
	if n.part {
		opts = append(opts, jsontext.AllowDuplicateNames(true))
	}
	err := json.Unmarshal(n.value, into, opts...)
	if err == nil {
		return nil
	}
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic):
		n.path += string(semantic.JSONPointer)
		if errors.Is(err, json.ErrUnknownName) {
			return n.unsupported("this setting")
		}
		if semantic.Err != nil {
			return n.errorf("%v", semantic.Err)
		}
		return n.errorf("unexpected JSON %v", semantic.JSONKind)
	case errors.As(err, &syntactic):
		n.path += string(syntactic.JSONPointer)
		return n.errorf("%v at byte %d", syntactic.Err, syntactic.ByteOffset)
	}
	return n.errorf("%v", err)
}

// kind reads the "type" member of a component.
func (n node) kind() (string, error) {
	if kind, ok := n.leadingKind(); ok {
		return kind, nil
	}
	var t struct {
		Type string `json:"type"`
	}
	err := n.scan(&t)
	return t.Type, err
}

// leadingKind reads the "type" member of a part and nothing after it: most often
// the first one of an object that is long.
func (n node) leadingKind() (kind string, ok bool) {
	if !n.part {
		return "", false
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(n.value), jsontext.AllowDuplicateNames(true))
	if tok, err := d.ReadToken(); err != nil || tok.Kind() != '{' {
		return "", false
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return "", false
		}
		if name.String() == "type" {
			tok, err := d.ReadToken()
			return tok.String(), err == nil && tok.Kind() == '"'
		}
		if d.SkipValue() != nil {
			return "", false
		}
	}
	return "", false
}

// document is tokenizer.json.
type document struct {
	Version string `json:"version"`
	// Truncation and padding are settings of a training run; serving applies
	// neither.
	Truncation    jsontext.Value `json:"truncation"`
	Padding       jsontext.Value `json:"padding"`
	AddedTokens   []addedEntry   `json:"added_tokens"`
	Normalizer    jsontext.Value `json:"normalizer"`
	PreTokenizer  jsontext.Value `json:"pre_tokenizer"`
	PostProcessor jsontext.Value `json:"post_processor"`
	Decoder       jsontext.Value `json:"decoder"`
	Model         jsontext.Value `json:"model"`
}

type addedEntry struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

func (e addedEntry) token() AddedToken {
	return AddedToken{
		ID: e.ID, Content: e.Content, SingleWord: e.SingleWord, LStrip: e.LStrip, RStrip: e.RStrip,
		Normalized: e.Normalized, Special: e.Special, decodes: e.Content,
	}
}

// bpeModel is the model member for byte pair encoding.
type bpeModel struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	UnkToken     *string           `json:"unk_token"`
	Prefix       *string           `json:"continuing_subword_prefix"`
	Suffix       *string           `json:"end_of_word_suffix"`
	FuseUnk      bool              `json:"fuse_unk"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       mergeList         `json:"merges"`
}

// mergeList is the merges in either of their spellings: ["a","b"], or "a b".
type mergeList [][2]string

// UnmarshalJSONFrom reads the list.
func (l *mergeList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if tok, err := d.ReadToken(); err != nil {
		return err
	} else if tok.Kind() != '[' {
		return errors.New("merges must be a list")
	}
	for d.PeekKind() != ']' {
		var pair [2]string
		if d.PeekKind() == '"' {
			tok, err := d.ReadToken()
			if err != nil {
				return err
			}
			a, b, ok := cutPair(tok.String())
			if !ok {
				return fmt.Errorf("merge %q is not two tokens with a space between", tok.String())
			}
			pair = [2]string{a, b}
		} else if err := readPair(d, &pair); err != nil {
			return err
		}
		*l = append(*l, pair)
	}
	_, err := d.ReadToken()
	return err
}

// cutPair cuts a merge that is written with a space between its tokens.
func cutPair(s string) (a, b string, ok bool) {
	a, b, ok = strings.Cut(s, " ")
	return a, b, ok && !strings.Contains(b, " ")
}

// readPair reads a list of two strings.
func readPair(d *jsontext.Decoder, pair *[2]string) error {
	for _, want := range []struct {
		kind jsontext.Kind
		into *string
	}{{'[', nil}, {'"', &pair[0]}, {'"', &pair[1]}, {']', nil}} {
		tok, err := d.ReadToken()
		if err != nil {
			return err
		}
		if tok.Kind() != want.kind {
			return errors.New("a merge must be a list of two tokens")
		}
		if want.into != nil {
			*want.into = tok.String()
		}
	}
	return nil
}

// unigramModel is the model member for Unigram.
type unigramModel struct {
	Type         string         `json:"type"`
	UnkID        *uint32        `json:"unk_id"`
	ByteFallback bool           `json:"byte_fallback"`
	Vocab        []unigramToken `json:"vocab"`
}

// unigramToken is a token and its score, written ["token", -1.5].
type unigramToken struct {
	token string
	score float64
}

// UnmarshalJSONFrom reads the pair.
func (u *unigramToken) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var score jsontext.Value
	for i, kind := range []jsontext.Kind{'[', '"', '0', ']'} {
		if d.PeekKind() != kind {
			if d.PeekKind() == jsontext.KindInvalid {
				_, err := d.ReadToken()
				return err
			}
			return errors.New("a token must be a list of its text and its score")
		}
		if i == 2 {
			var err error
			if score, err = d.ReadValue(); err != nil {
				return err
			}
			u.score, err = referenceFloat(score)
			if err != nil {
				return err
			}
			continue
		}
		tok, err := d.ReadToken()
		if err != nil {
			return err
		}
		if i == 1 {
			u.token = tok.String()
		}
	}
	return nil
}

// splitPart is a pre-tokenizer of type Split.
type splitPart struct {
	Type     string      `json:"type"`
	Pattern  patternPart `json:"pattern"`
	Behavior string      `json:"behavior"`
	Invert   bool        `json:"invert"`
}

// patternPart is a regular expression or a plain string.
type patternPart struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

// replacePart is Replace as normalizer and decoder.
type replacePart struct {
	Type    string      `json:"type"`
	Pattern patternPart `json:"pattern"`
	Content string      `json:"content"`
}

// metaspacePart is Metaspace as pre-tokenizer and decoder.
type metaspacePart struct {
	Type           string  `json:"type"`
	Replacement    string  `json:"replacement"`
	AddPrefixSpace *bool   `json:"add_prefix_space"`
	PrependScheme  *string `json:"prepend_scheme"`
	Split          *bool   `json:"split"`
	StrRep         *string `json:"str_rep"`
}

// byteLevelPart is ByteLevel as pre-tokenizer, post-processor and decoder.
type byteLevelPart struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       *bool  `json:"use_regex"`
}

// templatePart is the post-processor TemplateProcessing.
type templatePart struct {
	Type          string          `json:"type"`
	Single        []templatePiece `json:"single"`
	Pair          jsontext.Value  `json:"pair"`
	SpecialTokens map[string]struct {
		ID     string   `json:"id"`
		IDs    []uint32 `json:"ids"`
		Tokens []string `json:"tokens"`
	} `json:"special_tokens"`

	// Members of the ByteLevel that once stood in its place, which the files of
	// Command-R still have. The reference reads none of them.
	AddPrefixSpace jsontext.Value `json:"add_prefix_space"`
	TrimOffsets    jsontext.Value `json:"trim_offsets"`
	UseRegex       jsontext.Value `json:"use_regex"`
}

type templatePiece struct {
	SpecialToken *templateRef `json:"SpecialToken"`
	Sequence     *templateRef `json:"Sequence"`
}

type templateRef struct {
	ID     string `json:"id"`
	TypeID int    `json:"type_id"`
}
