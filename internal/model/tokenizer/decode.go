package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// decoding is the decoder of the file: how tokens become text. It works on one
// token after the other, which is what streaming needs, in this order; what is
// written in another order is refused.
type decoding struct {
	byteLevel bool // tokens are bytes in ByteLevel's alphabet, and nothing else below
	steps     []tokenStep
	leading   bool // a step depends on whether a token is before
	bytes     bool // tokens like <0x0A> are bytes
	fused     bool // what follows is done to the whole text
	strip     rune // taken from the beginning of the whole text,
	stripMost int  // this often at most

	scratch scratch // of steps
}

// A tokenStep changes the text of one token; first says that no token is
// before it.
type tokenStep func(text string, first bool) string

func (t *Tokenizer) readDecoder(n node) error {
	if n.null() {
		// The reference then writes a space between tokens.
		t.decoding.leading = true
		t.decoding.steps = []tokenStep{func(text string, first bool) string {
			if first {
				return text
			}
			return " " + text
		}}
		return nil
	}
	return t.decoding.read(n)
}

func (d *decoding) read(n node) error {
	kind, err := n.kind()
	if err != nil {
		return err
	}
	if kind == "Sequence" {
		var seq struct {
			Type     string           `json:"type"`
			Decoders []jsontext.Value `json:"decoders"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		return n.each("decoders", seq.Decoders, d.read)
	}
	switch kind {
	case "Fuse":
		var bare struct {
			Type string `json:"type"`
		}
		d.fused = true
		return n.decode(&bare)
	case "Strip":
		return d.readStrip(n)
	}
	if d.fused || d.bytes || d.byteLevel {
		return n.unsupported(fmt.Sprintf("decoder %q after Fuse, ByteFallback or ByteLevel", kind))
	}
	switch kind {
	case "ByteLevel":
		if len(d.steps) > 0 {
			return n.unsupported("decoder \"ByteLevel\" after others")
		}
		d.byteLevel, d.fused = true, true
		return n.decode(new(byteLevelPart))
	case "ByteFallback":
		var bare struct {
			Type string `json:"type"`
		}
		d.bytes = true
		return n.decode(&bare)
	case "Replace":
		r, err := readReplace(n)
		if err != nil {
			return err
		}
		return d.addReplace(n, r)
	case "Metaspace":
		return d.readMetaspace(n)
	}
	return n.unsupported(fmt.Sprintf("decoder %q", kind))
}

func (d *decoding) addReplace(n node, r replace) error {
	d.scratch.room = roomFor(1)
	if _, _, err := r.rewrite(&d.scratch, nil, "a", neverPause{}); err != nil {
		return n.errorf("%v", err)
	}
	var out []byte
	d.steps = append(d.steps, func(text string, _ bool) string {
		var changed bool
		var err error
		out, changed, err = r.rewrite(&d.scratch, out[:0], text, neverPause{})
		if err != nil || !changed {
			return text
		}
		d.scratch.takes(len(out) - len(text))
		return string(out)
	})
	return nil
}

func (d *decoding) readStrip(n node) error {
	var part struct {
		Type    string `json:"type"`
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	if err := n.decode(&part); err != nil {
		return err
	}
	switch {
	case utf8.RuneCountInString(part.Content) != 1:
		return n.at("/content", nil).errorf("want one character, have %q", part.Content)
	case part.Start < 0:
		return n.at("/start", nil).errorf("want no negative number, have %d", part.Start)
	case part.Stop != 0:
		return n.at("/stop", nil).unsupported("taking characters from the end")
	case d.fused && d.stripMost > 0:
		return n.unsupported("a second Strip after Fuse")
	case d.bytes && !d.fused:
		return n.unsupported("decoder \"Strip\" between ByteFallback and Fuse")
	}
	if d.fused {
		d.strip, _ = utf8.DecodeRuneInString(part.Content)
		d.stripMost = part.Start
		return nil
	}
	d.steps = append(d.steps, func(text string, _ bool) string {
		for i := 0; i < part.Start && strings.HasPrefix(text, part.Content); i++ {
			text = text[len(part.Content):]
		}
		return text
	})
	return nil
}

func (d *decoding) readMetaspace(n node) error {
	var part metaspacePart
	if err := n.decode(&part); err != nil {
		return err
	}
	scheme, err := part.scheme(n)
	if err != nil {
		return err
	}
	d.leading = true
	d.steps = append(d.steps, func(text string, first bool) string {
		if first && scheme != "never" {
			return strings.ReplaceAll(text, part.Replacement, "")
		}
		return strings.ReplaceAll(text, part.Replacement, " ")
	})
	return nil
}

// token appends the text of a token. isByte is set if the text is a single byte, which
// may be a part of a rune.
func (d *decoding) token(dst []byte, text string, first bool) (out []byte, isByte bool) {
	if d.byteLevel {
		if out, ok := appendFromByteAlphabet(dst, text); ok {
			return out, false
		}
		return append(dst, text...), false
	}
	for _, step := range d.steps {
		text = step(text, first)
	}
	if d.bytes {
		if b, ok := byteOf(text); ok {
			return append(dst, b), true
		}
	}
	return append(dst, text...), false
}

// byteOf reads a token like <0x0A>.
func byteOf(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(strings.TrimPrefix(token[3:5], "+"), 16, 8)
	return byte(b), err == nil
}
