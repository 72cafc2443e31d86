package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Tokenizer is a tokenizer.json, ready for use. It is immutable and serves any
// number of goroutines.
type Tokenizer struct {
	vocab vocab
	scan  []scanner // each cuts what the one before it cut
	nfc   bool
	// rawTokens are looked for in the text as it comes, normalTokens in the
	// normalized text. Either may be nil.
	rawTokens, normalTokens *finder
	prefix, suffix          []uint32 // what the post-processor adds

	lineCuts lineCuts // where long segments may be reused in parts

	ids     map[string]uint32 // by content, added tokens included
	added   map[uint32]AddedToken
	text    []byte // of all tokens, as they decode
	offsets []uint32
	known   []bool // ids that are tokens
	special []bool
}

// parse builds a tokenizer from the bytes of tokenizer.json.
func parse(data []byte) (*Tokenizer, error) {
	root := node{file: fileTokenizer, value: jsontext.Value(data)}
	var doc document
	if err := root.decode(&doc); err != nil {
		return nil, err
	}
	if doc.Version != "1.0" {
		return nil, root.at("/version", nil).errorf("version %q is not known; 1.0 is", doc.Version)
	}
	t := &Tokenizer{added: make(map[uint32]AddedToken)}
	steps := []struct {
		path  string
		value jsontext.Value
		read  func(node) error
	}{
		{"/normalizer", doc.Normalizer, t.readNormalizer},
		{"/pre_tokenizer", doc.PreTokenizer, t.readPreTokenizer},
		{"/model", doc.Model, t.readModel},
		{"/decoder", doc.Decoder, t.readDecoder},
		{"/added_tokens", nil, func(n node) error { return t.readAdded(n, doc.AddedTokens) }},
		{"/post_processor", doc.PostProcessor, t.readPostProcessor},
	}
	for _, step := range steps {
		if err := step.read(root.at(step.path, step.value)); err != nil {
			return nil, err
		}
	}
	t.layOut()
	t.lineCuts = readLineCuts(&doc)
	return t, nil
}

func (t *Tokenizer) readNormalizer(n node) error {
	if n.null() {
		return nil
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	switch kind {
	case "NFC":
		t.nfc = true
		return nil
	case "Sequence":
		var seq struct {
			Type        string           `json:"type"`
			Normalizers []jsontext.Value `json:"normalizers"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		for i, part := range seq.Normalizers {
			if err := t.readNormalizer(n.at(fmt.Sprintf("/normalizers/%d", i), part)); err != nil {
				return err
			}
		}
		return nil
	}
	return n.unsupported(fmt.Sprintf("normalizer %q", kind))
}

func (t *Tokenizer) readPreTokenizer(n node) error {
	parts := []node{n}
	if n.null() {
		return n.unsupported("a vocabulary without pre-tokenizer")
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	if kind == "Sequence" {
		var seq struct {
			Type          string           `json:"type"`
			PreTokenizers []jsontext.Value `json:"pretokenizers"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		parts = parts[:0]
		for i, part := range seq.PreTokenizers {
			parts = append(parts, n.at(fmt.Sprintf("/pretokenizers/%d", i), part))
		}
	}
	mapped := false // bytes are mapped to the byte alphabet
	for _, part := range parts {
		kind, err := part.kind()
		if err != nil {
			return err
		}
		if mapped {
			return part.unsupported(fmt.Sprintf("pre-tokenizer %q after ByteLevel", kind))
		}
		switch kind {
		case "Split":
			err = t.readSplit(part)
		case "ByteLevel":
			mapped = true
			err = t.readByteLevel(part)
		default:
			err = part.unsupported(fmt.Sprintf("pre-tokenizer %q", kind))
		}
		if err != nil {
			return err
		}
	}
	if !mapped {
		return n.unsupported("a pre-tokenizer without ByteLevel")
	}
	if len(t.scan) == 0 {
		return n.unsupported("a pre-tokenizer that does not split")
	}
	return nil
}

func (t *Tokenizer) readByteLevel(n node) error {
	var part byteLevelPart
	if err := n.decode(&part); err != nil {
		return err
	}
	if part.AddPrefixSpace {
		return n.at("/add_prefix_space", nil).unsupported("a prefix space")
	}
	if part.UseRegex == nil || *part.UseRegex {
		t.scan = append(t.scan, gpt2{})
	}
	return nil
}

func (t *Tokenizer) readSplit(n node) error {
	var part splitPart
	if err := n.decode(&part); err != nil {
		return err
	}
	if part.Pattern.Regex == nil {
		return n.at("/pattern", nil).unsupported("splitting at a plain string")
	}
	g, ok := grammar(*part.Pattern.Regex)
	if !ok {
		return n.at("/pattern/Regex", nil).unsupported(fmt.Sprintf("the split pattern %q", *part.Pattern.Regex))
	}
	// To keep each match apart is also what removing everything else does, if
	// there is nothing else.
	isolated := part.Behavior == "Isolated" || part.Behavior == "Removed" && part.Invert && g.covers
	if !isolated {
		return n.at("/behavior", nil).unsupported(fmt.Sprintf("behavior %q with invert %v", part.Behavior, part.Invert))
	}
	t.scan = append(t.scan, g.scan)
	return nil
}

func (t *Tokenizer) readDecoder(n node) error {
	if n.null() {
		return n.unsupported("a vocabulary without decoder")
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	if kind != "ByteLevel" {
		return n.unsupported(fmt.Sprintf("decoder %q", kind))
	}
	return n.decode(new(byteLevelPart))
}

func (t *Tokenizer) readPostProcessor(n node) error {
	if n.null() {
		return nil
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	switch kind {
	case "ByteLevel": // moves offsets, not ids
		return n.decode(new(byteLevelPart))
	case "TemplateProcessing":
		return t.readTemplate(n)
	case "Sequence":
		var seq struct {
			Type       string           `json:"type"`
			Processors []jsontext.Value `json:"processors"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		for i, part := range seq.Processors {
			if err := t.readPostProcessor(n.at(fmt.Sprintf("/processors/%d", i), part)); err != nil {
				return err
			}
		}
		return nil
	}
	return n.unsupported(fmt.Sprintf("post-processor %q", kind))
}

func (t *Tokenizer) readTemplate(n node) error {
	var part templatePart
	if err := n.decode(&part); err != nil {
		return err
	}
	if len(t.prefix)+len(t.suffix) > 0 {
		return n.unsupported("a second template")
	}
	before := true
	for i, piece := range part.Single {
		at := n.at(fmt.Sprintf("/single/%d", i), nil)
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil:
			if piece.Sequence.ID != "A" || !before {
				return at.unsupported("a template that does not have the text once")
			}
			before = false
		case piece.SpecialToken != nil && piece.Sequence == nil:
			token, ok := part.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return at.errorf("token %q is not in special_tokens", piece.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if int(id) >= len(t.known) || !t.known[id] {
					return at.errorf("token %q has id %d, which is no token", piece.SpecialToken.ID, id)
				}
			}
			if before {
				t.prefix = append(t.prefix, token.IDs...)
			} else {
				t.suffix = append(t.suffix, token.IDs...)
			}
		default:
			return at.errorf("want one of SpecialToken and Sequence")
		}
	}
	if before {
		return n.at("/single", nil).unsupported("a template that does not have the text once")
	}
	return nil
}

// readAdded takes the added tokens. The reference numbers them itself, in the
// order of the file; a file that says otherwise is contradictory.
func (t *Tokenizer) readAdded(n node, entries []addedEntry) error {
	size := uint32(len(t.ids))
	next := size
	var raw, normal []AddedToken
	var rawText, normalText []string
	model := make(map[string]uint32)
	for i, e := range entries {
		at := n.at(fmt.Sprintf("/%d", i), nil)
		if e.Content == "" {
			return at.errorf("content is empty")
		}
		if !utf8.ValidString(e.Content) {
			return at.errorf("content is not valid UTF-8")
		}
		if _, twice := model[e.Content]; twice {
			return at.errorf("token %q is added twice", e.Content)
		}
		want, inModel := t.ids[e.Content]
		if !inModel {
			want = next
		}
		if e.ID != want {
			return at.at("/id", nil).errorf("token %q has id %d, but in this place it is %d", e.Content, e.ID, want)
		}
		next = max(next, want+1)
		model[e.Content] = want
		token := AddedToken(e)
		t.added[e.ID] = token
		if !e.Normalized {
			raw, rawText = append(raw, token), append(rawText, e.Content)
			continue
		}
		text := e.Content
		if t.nfc {
			text, _ = new(normalizer).nfc(text, neverPause{})
		}
		normal, normalText = append(normal, token), append(normalText, text)
	}
	for content, id := range model {
		t.ids[content] = id
	}
	t.known = make([]bool, max(int(next), t.span()))
	for _, id := range t.ids {
		t.known[id] = true
	}
	t.rawTokens, t.normalTokens = newFinder(raw, rawText), newFinder(normal, normalText)
	return nil
}

// span is one more than the greatest id.
func (t *Tokenizer) span() int {
	top := -1
	for _, id := range t.ids {
		top = max(top, int(id))
	}
	return top + 1
}

// neverPause is for work that is short and nobody's.
type neverPause struct{}

func (neverPause) pause() error { return nil }

// layOut writes out the text of every token for decoding.
func (t *Tokenizer) layOut() {
	byID := make([]string, len(t.known))
	for content, id := range t.ids {
		byID[id] = content
	}
	t.special = make([]bool, len(t.known))
	t.offsets = make([]uint32, 1, len(byID)+1)
	specials := make(map[string]bool)
	for _, token := range t.added {
		byID[token.ID] = token.Content
		if token.Special {
			specials[token.Content] = true
		}
	}
	for id, content := range byID {
		if b, ok := fromByteAlphabet(content); ok {
			t.text = append(t.text, b...)
		} else {
			t.text = append(t.text, content...)
		}
		t.offsets = append(t.offsets, uint32(len(t.text)))
		t.special[id] = specials[content]
	}
	t.text, t.offsets = slices.Clip(t.text), slices.Clip(t.offsets)
}

// Size is one more than the greatest id.
func (t *Tokenizer) Size() int { return len(t.known) }

// ID gives the id of a token by its content, as tokenizer.json spells it.
func (t *Tokenizer) ID(content string) (uint32, bool) {
	id, ok := t.ids[content]
	return id, ok
}

// Known says whether an id is a token's.
func (t *Tokenizer) Known(id uint32) bool { return int(id) < len(t.known) && t.known[id] }

// Special says whether an id is left out of text decoded with skipSpecial.
func (t *Tokenizer) Special(id uint32) bool { return int(id) < len(t.special) && t.special[id] }

// TokenBytes gives the bytes a token decodes to, which need not be whole
// runes, and which the caller does not change. An unknown id has none.
func (t *Tokenizer) TokenBytes(id uint32) []byte {
	if int(id) >= len(t.known) {
		return nil
	}
	return t.text[t.offsets[id]:t.offsets[id+1]:t.offsets[id+1]]
}

// AddedTokens gives the added tokens in the order of their ids.
func (t *Tokenizer) AddedTokens() []AddedToken {
	out := make([]AddedToken, 0, len(t.added))
	for _, token := range t.added {
		out = append(out, token)
	}
	slices.SortFunc(out, func(a, b AddedToken) int { return int(a.ID) - int(b.ID) })
	return out
}

// fromByteAlphabet reads a token in the alphabet that ByteLevel writes bytes
// in: printable bytes stand for themselves, the others for runes from U+0100.
func fromByteAlphabet(token string) ([]byte, bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := alphabetByte(r)
		if !ok {
			return nil, false
		}
		out = append(out, b)
	}
	return out, true
}

func alphabetByte(r rune) (byte, bool) {
	switch {
	case printable(r):
		return byte(r), true
	case r < 0x100 || r >= 0x100+68:
		return 0, false
	}
	switch n := r - 0x100; { // the 68 others in order: 00-20, 7f-a0, ad
	case n < 0x21:
		return byte(n), true
	case n < 0x21+0x22:
		return byte(n - 0x21 + 0x7f), true
	}
	return 0xad, true
}

func printable(r rune) bool {
	return r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae && r <= 0xff
}

// toByteAlphabet writes bytes in ByteLevel's alphabet.
func toByteAlphabet(s string) string {
	var out strings.Builder
	for i := range len(s) {
		switch b := rune(s[i]); {
		case printable(b):
			out.WriteRune(b)
		case b < 0x21:
			out.WriteRune(0x100 + b)
		case b == 0xad:
			out.WriteRune(0x100 + 67)
		default:
			out.WriteRune(0x100 + 0x21 + b - 0x7f)
		}
	}
	return out.String()
}
