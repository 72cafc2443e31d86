package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"unicode/utf8"
	"unsafe"

	"weir/internal/infer"
)

// Work is counted in units of about 20 ns so that a pause comes about every
// 250 us, however hard the text is.
const (
	pauseBytes = 4096 // bytes of text found in a table or cache
	missFactor = 12   // how many times that a byte costs that must be merged
	pauseSteps = 2048 // steps of a loop over single symbols
)

// EncodeOptions say how to encode. The zero value encodes text as it is.
type EncodeOptions struct {
	// AddSpecial adds what the post-processor puts around a text, such as a
	// beginning-of-sequence token. A rendered chat template has it already.
	AddSpecial bool
	// PlainText takes special tokens in the text for ordinary text.
	PlainText bool
	// Yield is called about every 250 us, to let others run. Nil is
	// runtime.Gosched.
	Yield func()
	// Most, if not 0, bounds the ids: once it is known that there are more, which
	// may be long before the end of the text, Encode stops with a TooManyError.
	// A text with a few more may be encoded whole.
	Most int
	// Prefix has the ids of parts of earlier texts, and takes those of this
	// one; nil reuses nothing. The ids are the same either way.
	Prefix *PrefixCache
	// Division is the part of Prefix that is used. It has nothing of texts of other
	// divisions, so that the time that a text takes reveals nothing about them.
	Division uint64
}

// TooManyError states that a text has more ids than EncodeOptions.Most: at least so
// many.
type TooManyError struct{ AtLeast int }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("the text has at least %d tokens", e.AtLeast)
}

// Encoder encodes with one tokenizer. It keeps buffers and a cache of long pieces,
// about a megabyte, and serves one goroutine at a time.
type Encoder struct {
	t      *Tokenizer
	splits *splitCache // of all encoders of the tokenizer
	cache  *pieceCache
	merge  merger
	best   viterbi
	// Normalizers write alternately to two buffers. Each stage has its own memory,
	// which holds the text that later stages cut.
	normal  [2][]byte
	scratch scratch
	memory  []stageMemory
	ctx     context.Context // of the Encode under way
	work    int             // until the next pause
	before  int             // ids that dst had
	most    int             // ids that dst may have
	yield   func()

	prefix prefixUse
}

// stageMemory is what a stage reuses.
type stageMemory struct {
	text []byte
	found
	pieces []marked
}

// keepText bounds the memory of each kind that an idle encoder holds for
// texts, in bytes.
const keepText = 1 << 20

// trim lets go of what a very long text needed.
func (e *Encoder) trim() {
	for i := range e.normal {
		if cap(e.normal[i]) > keepText {
			e.normal[i] = nil
		}
	}
	if cap(e.scratch.runes) > keepText/16 || cap(e.scratch.spans) > keepText/16 || cap(e.scratch.stack) > keepText/64 {
		e.scratch = scratch{}
	}
	for i := range e.memory {
		if m := &e.memory[i]; cap(m.text) > keepText || cap(m.spans) > keepText/16 || cap(m.stack) > keepText/64 || cap(m.pieces) > keepText/16 {
			*m = stageMemory{}
		}
	}
}

// NewEncoder makes an encoder.
func (t *Tokenizer) NewEncoder() *Encoder {
	t.once.Do(func() { t.splits = newSplitCache() })
	return &Encoder{t: t, splits: t.splits, cache: newPieceCache(), memory: make([]stageMemory, len(t.stages))}
}

// Forget empties the caches, so that nothing of earlier texts is kept: its own, and that of all
// encoders of the tokenizer.
func (e *Encoder) Forget() {
	e.splits.clear()
	e.cache.clear()
}

// Encode appends the ids of text to dst. It lets other goroutines run at least about every 250
// us, also inside a single piece, except that the memory a piece needs is cleared in one go,
// at 0.5 to 1 ms for each MB of the piece; once ctx is done it stops with ctx's error. Text
// that is not valid UTF-8 is refused with an infer.CodeInvalid error that says where. After an
// error dst holds nothing of use.
func (e *Encoder) Encode(ctx context.Context, dst []uint32, text string, o EncodeOptions) ([]uint32, error) {
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	e.ctx, e.yield, e.work = ctx, o.Yield, pauseBytes
	if e.yield == nil {
		e.yield = runtime.Gosched
	}
	e.prefix = prefixUse{cache: o.Prefix, text: text}
	e.before, e.most = len(dst), math.MaxInt
	if o.Most > 0 {
		e.most = len(dst) + o.Most
	}
	e.scratch.room = roomFor(len(text))
	if w := e.t.vocab.widest; e.t.byteLevel && o.Most > 0 && o.Most < math.MaxInt/max(w, 1) {
		// Each byte is in a token, and what becomes longer than so many tokens does not fit.
		e.scratch.room.left = min(e.scratch.room.left, max(o.Most*w, growthLeft))
	}
	defer func() {
		e.ctx, e.yield = nil, nil
		e.prefix.end(len(dst) - e.before)
		e.trim()
	}()
	if o.Prefix == nil {
		if err := e.validate(text, 0); err != nil {
			return dst, err
		}
	}
	if o.AddSpecial {
		dst = append(dst, e.t.prefix...)
	}
	dst, err := e.raw(dst, text, o)
	if errors.Is(err, errGrown) {
		err = infer.Errorf(infer.CodeContext, "the text becomes too long for the model: %v", errGrown)
	}
	if err != nil {
		return dst, err
	}
	if o.AddSpecial {
		dst = append(dst, e.t.suffix...)
	}
	return dst, nil
}

// EncodeBytes is Encode of bytes, which must not change meanwhile.
func (e *Encoder) EncodeBytes(ctx context.Context, dst []uint32, text []byte, o EncodeOptions) ([]uint32, error) {
	return e.Encode(ctx, dst, unsafe.String(unsafe.SliceData(text), len(text)), o)
}

// validate refuses text that is not valid UTF-8, a part at a time. The text
// begins at byte base of the whole.
func (e *Encoder) validate(s string, base int) error {
	const part = 16 * pauseBytes // valid text is checked at over 1 GB/s
	for from := 0; from < len(s); {
		end := min(len(s), from+part)
		for end < len(s) && end > from+part-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end-- // not inside a rune
		}
		if !utf8.ValidString(s[from:end]) {
			at := base + from + invalidUTF8(s[from:end])
			return infer.Invalid("", "the text is not valid UTF-8 at byte %d: send text as UTF-8", at)
		}
		if from = end; from < len(s) {
			if err := e.pause(); err != nil {
				return err
			}
		}
	}
	return nil
}

// invalidUTF8 returns the offset of the first byte that is not valid.
func invalidUTF8(s string) int {
	for i := 0; ; {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
}

// pace lets others run inside a long scan, and says whether to go on. It may be
// called on no encoder at all.
func (e *Encoder) pace() bool {
	if e == nil {
		return true
	}
	if e.ctx.Err() != nil {
		return false
	}
	e.yield()
	return e.ctx.Err() == nil
}

// pause lets others run and says whether to go on.
func (e *Encoder) pause() error {
	e.work = pauseBytes
	if err := e.ctx.Err(); err != nil {
		return err // pace has noticed
	}
	e.yield()
	return e.ctx.Err()
}

// pauseAt is pause where dst has so many ids.
func (e *Encoder) pauseAt(n int) error {
	if err := e.fits(n); err != nil {
		return err
	}
	return e.pause()
}

// fits reports whether dst may have so many ids.
func (e *Encoder) fits(n int) error {
	if n > e.most {
		return &TooManyError{AtLeast: n - e.before}
	}
	return nil
}

// raw cuts at the added tokens that are looked for in the text as it came,
// normalizes what is between, cuts again at those looked for in normalized
// text, and encodes the segments that remain.
func (e *Encoder) raw(dst []uint32, s string, o EncodeOptions) ([]uint32, error) {
	return e.cut(dst, s, o, e.t.rawTokens, false, true)
}

// between encodes the text between two added tokens. first is set at the beginning of
// the text.
func (e *Encoder) between(dst []uint32, s string, o EncodeOptions, normal, first bool) ([]uint32, error) {
	if normal {
		return e.segment(dst, s, first, 0)
	}
	if e.prefix.cache != nil {
		return e.reuse(dst, s, o)
	}
	return e.normalized(dst, s, o, first)
}

// normalized goes on with what lies between two added tokens of the text as it
// came, or with a part of that.
func (e *Encoder) normalized(dst []uint32, s string, o EncodeOptions, first bool) ([]uint32, error) {
	s, err := e.t.normalize(s, &e.scratch, &e.normal, e) // valid until the next call
	if err != nil {
		return dst, err
	}
	return e.cut(dst, s, o, e.t.normalTokens, true, first)
}

// cut appends the ids of the tokens f finds, and goes on with what is between.
func (e *Encoder) cut(dst []uint32, s string, o EncodeOptions, f *finder, normal, first bool) ([]uint32, error) {
	var err error
	done, from := 0, 0
	for f != nil {
		m, ok := f.find(s, from, done, e)
		if !ok {
			break
		}
		from = m.resume
		if o.PlainText && m.token.Special {
			continue
		}
		if m.start > done {
			if dst, err = e.between(dst, s[done:m.start], o, normal, first && done == 0); err != nil {
				return dst, err
			}
		}
		dst = append(dst, m.token.ID)
		done = m.end
		if e.work -= pauseBytes / 64; e.work <= 0 {
			if err := e.pauseAt(len(dst)); err != nil {
				return dst, err
			}
		}
	}
	if done < len(s) {
		return e.between(dst, s[done:], o, normal, first && done == 0)
	}
	return dst, nil
}

// segment encodes text that has no added tokens, from a stage on. first says
// that it is the beginning of the text.
func (e *Encoder) segment(dst []uint32, s string, first bool, at int) ([]uint32, error) {
	if at < len(e.t.stages) {
		return e.t.stages[at].cut(e, dst, s, first, at)
	}
	if e.t.byteLevel {
		return e.pieces(dst, s, e.t.last)
	}
	return e.word(dst, s)
}

// word encodes what the stages cut for a model that is not byte-level.
func (e *Encoder) word(dst []uint32, s string) ([]uint32, error) {
	if e.t.unigram != nil {
		return e.path(dst, s)
	}
	if end := e.t.vocab.words; end > 0 {
		if token := e.t.ids.find(s); token != nil && token.from < end {
			return append(dst, token.id), nil
		}
	}
	return e.pieces(dst, s, e.t.vocab.cut)
}

// path encodes a word by the best path through it.
func (e *Encoder) path(dst []uint32, s string) ([]uint32, error) {
	b := unsafe.Slice(unsafe.StringData(s), len(s)) // only read
	u := e.t.unigram
	if len(b) > cachePiece {
		return e.best.encode(u, dst, s, e)
	}
	var k pieceKey
	var hash uint64
	ok := false
	short := len(b) <= shortPiece
	if short {
		k = keyOf(b, 0, len(b))
		hash = k.hash(len(b))
		if dst, ok = e.splits.get(dst, k, hash, len(b)); ok {
			return dst, nil
		}
	}
	dst, longHash, ok := e.cache.getLong(dst, b)
	if ok {
		return dst, nil
	}
	from := len(dst)
	dst, err := e.best.encode(u, dst, s, neverPause{})
	if err != nil {
		return dst, err
	}
	if !short || !e.splits.put(k, hash, len(b), dst[from:]) {
		e.cache.putLong(b, longHash, dst[from:])
	}
	if e.work -= missFactor * len(b); e.work <= 0 {
		return dst, e.pauseAt(len(dst))
	}
	return dst, nil
}

// pieces encodes what scan cuts.
func (e *Encoder) pieces(dst []uint32, s string, scan scanner) ([]uint32, error) {
	b := unsafe.Slice(unsafe.StringData(s), len(s)) // only read
	v, ascii := &e.t.vocab, e.t.ascii
	for i := 0; i < len(s); {
		var k pieceKey
		n := 0
		if ascii != nil {
			from := i
			dst, i, k, n = ascii.appendWhole(dst, &v.whole, b, i, i+e.work)
			if e.work -= i - from; e.work <= 0 {
				if err := e.pauseAt(len(dst)); err != nil {
					return dst, err
				}
				continue
			}
		}
		end := i + n
		if n == 0 {
			end = scan.next(s, i, e)
			if n = end - i; n <= shortPiece {
				k = keyOf(b, i, end)
			}
		}
		if n <= shortPiece {
			hash := k.hash(n)
			token, mark := v.whole.find(k, hash, n)
			if mark == pieceUndecided {
				mark = v.decideShort(b[i:end], token)
				e.work -= missFactor * n
			}
			if mark == pieceWhole {
				dst = append(dst, token.id)
			} else if cached, ok := e.splits.get(dst, k, hash, n); ok {
				dst = cached
			} else {
				dst = e.short(dst, b[i:end], k, hash)
			}
		} else {
			var err error
			if dst, err = e.long(dst, b[i:end]); err != nil {
				return dst, err
			}
		}
		i = end
		if e.work -= n; e.work <= 0 {
			if err := e.pauseAt(len(dst)); err != nil {
				return dst, err
			}
		}
	}
	return dst, nil
}

// short encodes a short piece that neither the vocabulary nor the cache of
// short pieces has.
func (e *Encoder) short(dst []uint32, piece []byte, k pieceKey, hash uint64) []uint32 {
	dst, longHash, ok := e.cache.getLong(dst, piece)
	if ok {
		return dst
	}
	from := len(dst)
	dst = e.t.vocab.mergeShort(dst, piece)
	e.work -= missFactor * len(piece)
	if !e.splits.put(k, hash, len(piece), dst[from:]) {
		e.cache.putLong(piece, longHash, dst[from:])
	}
	return dst
}

// long encodes a piece that is longer than shortPiece.
func (e *Encoder) long(dst []uint32, piece []byte) ([]uint32, error) {
	v := &e.t.vocab
	if id, ok := v.findLong(piece); ok {
		return append(dst, id), nil
	}
	if len(piece) > cachePiece {
		if e.t.byteLevel { // each byte is in a token, and none has more than the widest
			if err := e.fits(len(dst) + len(piece)/v.widest); err != nil {
				return dst, err
			}
		}
		return e.merge.merge(v, dst, piece, e)
	}
	dst, hash, ok := e.cache.getLong(dst, piece)
	if ok {
		return dst, nil
	}
	from := len(dst)
	e.work -= missFactor * len(piece)
	if len(piece) <= shortMerge {
		dst = v.mergeShort(dst, piece)
	} else {
		var err error
		if dst, err = e.merge.merge(v, dst, piece, e); err != nil {
			return dst, err
		}
	}
	e.cache.putLong(piece, hash, dst[from:])
	return dst, nil
}
