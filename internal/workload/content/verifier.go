package content

import "fmt"

// Mismatch is the first thing wrong with a text.
type Mismatch struct {
	Word   int    // which word, counted from 1
	Offset int64  // of the word's first byte (its space) in the text
	Got    string // the word, with its space
	Before string // the word before it, empty for the first
	Reason string
}

// Error implements error.
func (m *Mismatch) Error() string {
	if m.Before == "" {
		return fmt.Sprintf("word %d (%q at byte %d): %s", m.Word, m.Got, m.Offset, m.Reason)
	}
	return fmt.Sprintf("word %d (%q at byte %d, after %q): %s", m.Word, m.Got, m.Offset, m.Before, m.Reason)
}

// Verifier reads a text piece by piece and reports whether each word follows the one
// before. It holds one incomplete word and allocates nothing after its first pieces.
type Verifier struct {
	w       *Words
	last    uint16
	free    bool // the next word is taken on trust
	words   int
	wrong   int
	offset  int64  // of the text read
	start   int64  // of the incomplete last word
	partial []byte // the incomplete last word, with its space
	first   *Mismatch
}

// Verifier returns a verifier of a text from its beginning, for a reader who does not know
// the prompt: the first word must be one that follows no word. That is the case for every
// chat, because its prompt ends in the template's own tokens, and for any prompt that does
// not end in a word.
func (w *Words) Verifier() *Verifier { return &Verifier{w: w, last: noWord} }

// After sets the id that precedes the text, the last one of the prompt.
func (v *Verifier) After(id uint32) { v.last, v.free = v.w.word(id), false }

// Trust makes the verifier accept the next word without a check, for a text whose prompt
// may end in a word that the reader does not know.
func (v *Verifier) Trust() { v.free = true }

// Write reads the next piece. It returns the first mismatch of the text, now
// and ever after, and goes on counting words.
func (v *Verifier) Write(text []byte) (int, error) {
	for _, c := range text {
		v.feed(c)
	}
	return len(text), v.Err()
}

// WriteString is Write for a string.
func (v *Verifier) WriteString(text string) (int, error) {
	for i := range len(text) {
		v.feed(text[i])
	}
	return len(text), v.Err()
}

func (v *Verifier) feed(c byte) {
	if c == ' ' && len(v.partial) > 0 {
		v.word()
	}
	if len(v.partial) == 0 {
		v.start = v.offset
	}
	v.offset++
	// One byte over the longest word is enough to know that it is none.
	if len(v.partial) <= v.w.longest+1 {
		v.partial = append(v.partial, c)
	}
}

// word judges the complete word in partial.
func (v *Verifier) word() {
	got := v.partial
	v.partial = v.partial[:0]
	v.words++
	word := uint16(noWord)
	if got[0] == ' ' {
		if i, ok := v.w.byText[string(got[1:])]; ok {
			word = i
		}
	}
	switch {
	case word == noWord:
		v.mismatch(got, "not a word of the vocabulary")
	case !v.free && word&v.w.mask() != v.w.after(v.last):
		v.mismatch(got, "does not follow: a word was lost, repeated, moved or changed")
	}
	v.last, v.free = word, word == noWord
}

func (v *Verifier) mismatch(got []byte, reason string) {
	v.wrong++
	if v.first != nil {
		return
	}
	v.first = &Mismatch{Word: v.words, Offset: v.start, Got: string(got), Reason: reason}
	if v.last != noWord && v.words > 1 {
		v.first.Before = v.w.text[v.last]
	}
}

// Close ends the text and returns its first mismatch.
func (v *Verifier) Close() error {
	if len(v.partial) > 0 {
		v.word()
	}
	return v.Err()
}

// CloseCut ends a text that was cut at an arbitrary byte, as by a stop string. Its last
// word may be incomplete, so it is neither judged nor counted.
func (v *Verifier) CloseCut() error {
	v.partial = v.partial[:0]
	return v.Err()
}

// Err returns the first mismatch so far, or nil.
func (v *Verifier) Err() error {
	if v.first == nil {
		return nil
	}
	return v.first
}

// Words is the number of complete words read.
func (v *Verifier) Words() int { return v.words }

// Wrong is the number of words that did not follow.
func (v *Verifier) Wrong() int { return v.wrong }
