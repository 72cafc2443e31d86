package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Tokenizer is a tokenizer.json, ready for use. But for the cache of its encoders it is
// immutable, and it serves any number of goroutines.
type Tokenizer struct {
	normalizers []rewriter
	// stages cut the normalized text. If byteLevel, what they cut is then cut by
	// last and encoded as bytes.
	stages    []stage
	byteLevel bool
	last      scanner
	ascii     *asciiPieces // those of last, if it has any
	// wholeFirst is set if the place of the text's beginning is known only as long as
	// nothing is cut from the normalized text.
	wholeFirst bool
	vocab      vocab    // of a BPE model
	unigram    *unigram // of a Unigram model, or nil
	// rawTokens are looked for in the text as it comes, normalTokens in the
	// normalized text. Either may be nil.
	rawTokens, normalTokens *finder
	prefix, suffix          []uint32 // what the post-processor adds
	ranked                  bool     // it is of a rank file of tiktoken

	lineCuts lineCuts // where long segments may be reused in parts
	once     sync.Once
	splits   *splitCache // of its encoders; the first one makes it
	spell    sync.Once
	spelling []string // see layOutSpelling

	ids      *lexicon          // by content, those of the model first and then added ones
	size     int               // tokens of the model
	repeated map[uint32]string // tokens that another id has too
	added    map[uint32]AddedToken

	decoding decoding
	text     []byte // of all tokens, as they decode
	offsets  []uint32
	known    []bool // ids that are tokens
	special  []bool
	isByte   []bool // one byte of what need not be whole runes; nil if none is
	// firstText is what tokens decode to that decode differently where no token
	// is before them.
	firstText map[uint32]string
}

// parse builds a tokenizer from the bytes of tokenizer.json.
func parse(data []byte) (*Tokenizer, error) {
	root := node{file: fileTokenizer, value: jsontext.Value(data)}
	var doc document
	read, ok := skim(data)
	if ok {
		ok = node{file: fileTokenizer, value: jsontext.Value(read.rest)}.decode(&doc) == nil
	}
	if !ok { // the general reader finds what is wrong, and where
		doc, read = document{}, skimmed{}
		if err := root.decode(&doc); err != nil {
			return nil, err
		}
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
		{"/model", doc.Model, func(n node) error { return t.readModel(n, read) }},
		{"/decoder", doc.Decoder, t.readDecoder},
		{"/added_tokens", nil, func(n node) error { return t.readAdded(n, doc.AddedTokens) }},
		{"/post_processor", doc.PostProcessor, t.readPostProcessor},
	}
	for _, step := range steps {
		if err := step.read(root.at(step.path, step.value)); err != nil {
			return nil, err
		}
	}
	if t.byteLevel {
		t.setLast()
	}
	if t.layOut(); t.decoding.scratch.over {
		return nil, root.at("/decoder", doc.Decoder).errorf("%v", errGrown)
	}
	t.lineCuts = readLineCuts(&doc)
	return t, nil
}

// setLast takes the last scanner out of the stages, so that bytes are cut and
// encoded in one loop.
func (t *Tokenizer) setLast() {
	t.last = wholeText{}
	if n := len(t.stages); n > 0 {
		if c, ok := t.stages[n-1].(isolate); ok {
			t.last, t.stages = c.scan, t.stages[:n-1]
		}
	}
	if p, ok := t.last.(plain); ok {
		t.ascii = p.ascii()
	}
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
		return n.each("processors", seq.Processors, t.readPostProcessor)
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
					return at.errorf("token %q has id %d, which is not a token", piece.SpecialToken.ID, id)
				}
			}
			if len(t.prefix)+len(t.suffix)+len(token.IDs) > mostSpecial {
				return at.errorf("the template adds more than %d tokens to each text", mostSpecial)
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

// mostSpecial bounds what a template adds to a text.
const mostSpecial = 1 << 10

// readAdded takes the added tokens. The reference numbers them itself, in the
// order of the file; a file that says otherwise is contradictory.
func (t *Tokenizer) readAdded(n node, entries []addedEntry) error {
	next := uint32(t.size)
	var raw, normal []AddedToken
	var rawText, normalText []string
	model := make(map[string]uint32)
	var x scratch
	for _, e := range entries {
		x.left += len(e.Content)
	}
	x.room = roomFor(x.left)
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
		want, inModel := t.ids.get(e.Content)
		if !inModel {
			want = next
		}
		if e.ID != want {
			return at.at("/id", nil).errorf("token %q has id %d, but in this place it is %d", e.Content, e.ID, want)
		}
		next = max(next, want+1)
		model[e.Content] = want
		token := e.token()
		t.added[e.ID] = token
		if !e.Normalized {
			raw, rawText = append(raw, token), append(rawText, e.Content)
			continue
		}
		if t.wholeFirst {
			return at.at("/normalized", nil).unsupported("an added token looked for in text whose lengths a normalizer changed, with the scheme \"first\",")
		}
		text, err := t.normalizeToken(e.Content, &x)
		if err != nil {
			return at.errorf("%v", err)
		}
		if text == "" {
			return at.unsupported("a token whose normal form is empty")
		}
		token.decodes = text
		t.added[e.ID] = token
		normal, normalText = append(normal, token), append(normalText, text)
	}
	for content, id := range model {
		t.ids.set(content, id)
	}
	t.known = make([]bool, max(int(next), t.span()))
	for _, id := range t.ids.all() {
		t.known[id] = true
	}
	for id := range t.repeated {
		t.known[id] = true
	}
	t.rawTokens, t.normalTokens = newFinder(raw, rawText), newFinder(normal, normalText)
	return nil
}

// span is one more than the greatest id.
func (t *Tokenizer) span() int {
	top := t.size - 1
	for _, id := range t.ids.all() {
		top = max(top, int(id))
	}
	return top + 1
}

// layOut writes out the text of every token for decoding.
func (t *Tokenizer) layOut() {
	byID := append(t.ids.byID(), make([]string, len(t.known))...)[:len(t.known)]
	for id, content := range t.repeated {
		byID[id] = content
	}
	specials := make(map[string]bool)
	for _, token := range t.added {
		byID[token.ID] = token.decodes
		if token.Special {
			specials[token.Content] = true
		}
	}
	t.special = make([]bool, len(t.known))
	if t.decoding.bytes {
		t.isByte = make([]bool, len(t.known))
	}
	t.firstText = make(map[uint32]string)
	t.offsets = make([]uint32, 1, len(byID)+1)
	t.text = make([]byte, 0, len(t.ids.text))
	t.decoding.scratch.room = roomFor(len(t.ids.text))
	var first []byte
	for id, content := range byID {
		if t.known[id] {
			from, isByte := len(t.text), false
			if t.text, isByte = t.decoding.token(t.text, content, false); isByte {
				t.isByte[id] = true
			}
			if t.decoding.leading {
				if first, _ = t.decoding.token(first[:0], content, true); string(first) != string(t.text[from:]) {
					t.firstText[uint32(id)] = string(first)
				}
			}
			// The reference knows special tokens by what they say, tiktoken by id.
			if t.special[id] = specials[content]; t.ranked {
				t.special[id] = t.added[uint32(id)].Special
			}
		}
		t.offsets = append(t.offsets, uint32(len(t.text)))
	}
	t.text, t.offsets = slices.Clip(t.text), slices.Clip(t.offsets)
}

// Size is one more than the greatest id.
func (t *Tokenizer) Size() int { return len(t.known) }

// ID returns the id of a token by its content, as tokenizer.json spells it.
func (t *Tokenizer) ID(content string) (uint32, bool) {
	return t.ids.get(content)
}

// Known reports whether an id is a token's.
func (t *Tokenizer) Known(id uint32) bool { return int(id) < len(t.known) && t.known[id] }

// Special reports whether an id is left out of text decoded with skipSpecial.
func (t *Tokenizer) Special(id uint32) bool { return int(id) < len(t.special) && t.special[id] }

// TokenBytes returns the bytes a token decodes to where others are before it, which
// need not be whole runes, and which the caller does not change. An unknown id has
// none.
func (t *Tokenizer) TokenBytes(id uint32) []byte {
	if int(id) >= len(t.known) {
		return nil
	}
	return t.text[t.offsets[id]:t.offsets[id+1]:t.offsets[id+1]]
}

// OrdinaryBytes is TokenBytes of an id that is a token and not special: of
// what a model may write as text. content.New takes it for its vocabulary.
func (t *Tokenizer) OrdinaryBytes(id uint32) ([]byte, bool) {
	return t.TokenBytes(id), t.Known(id) && !t.Special(id)
}

// AddedTokens returns the added tokens in the order of their ids.
func (t *Tokenizer) AddedTokens() []AddedToken {
	out := make([]AddedToken, 0, len(t.added))
	for _, token := range t.added {
		out = append(out, token)
	}
	slices.SortFunc(out, func(a, b AddedToken) int { return int(a.ID) - int(b.ID) })
	return out
}

// appendFromByteAlphabet appends the bytes of a token in the alphabet that ByteLevel writes
// bytes in: printable bytes stand for themselves, the others for runes from U+0100.
func appendFromByteAlphabet(out []byte, token string) ([]byte, bool) {
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

// alphabetRune writes a byte in ByteLevel's alphabet.
func alphabetRune(c byte) rune {
	switch b := rune(c); {
	case printable(b):
		return b
	case b < 0x21:
		return 0x100 + b
	case b == 0xad:
		return 0x100 + 67
	default:
		return 0x100 + 0x21 + b - 0x7f
	}
}

// toByteAlphabet writes bytes in ByteLevel's alphabet.
func toByteAlphabet(s string) string {
	var out strings.Builder
	for i := range len(s) {
		out.WriteRune(alphabetRune(s[i]))
	}
	return out.String()
}
