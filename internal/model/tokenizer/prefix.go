package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/maypok86/otter/v2"
	"github.com/zeebo/xxh3"
)

// The bounds of what a PrefixCache holds.
const (
	// prefixShortest is the shortest part worth a look-up, in bytes.
	prefixShortest = 128
	// prefixPart is about how long the parts of a long segment are.
	prefixPart = 4 << 10
	// prefixOverhead is about what an entry takes beside its text and ids.
	prefixOverhead = 256
)

// PrefixCache caches the ids of parts of earlier texts. When a conversation has grown
// by a turn, only that turn is encoded. The cache is shared by the encoders of any
// number of tokenizers and is safe for concurrent use.
//
// # Unit of reuse
//
// Added tokens cut a text exactly: the ids of the segment between two of them do not
// depend on the text around it. The cache therefore holds segments, not prefixes. The
// earlier turns of a conversation are found one by one, each is stored once for all
// conversations and turns that continue it, and memory is linear in the text. The cuts
// are computed again for every text, so tokens that include white space or match only
// single words do not make the cache inexact.
//
// A segment may be long: a document of 40,000 tokens with a question after it, or a
// completion's prompt, in which no special token occurs. If the tokenizer's split
// pattern never joins a line break to the ASCII letter after it (all patterns of
// [Grammars] that cut text into words; see lineCuts), long segments are cut further, at
// the first such place after every 4 KiB. The places depend only on the text since the
// segment's beginning, so a shared beginning is found too, up to its last whole part.
// With any other tokenizer, and for text without such a place, only whole segments are
// reused. Text that is shared only after the first difference within a segment is not
// reused, because the places are counted from its beginning.
//
// # Exactness
//
// A part is found by a hash of its bytes, and then its bytes, its tokenizer and how it
// was encoded are compared: a collision costs a miss, never wrong ids. The hash is
// seeded at random, so that collisions cannot be chosen.
//
// # Bounds
//
// The total bytes of text, ids and bookkeeping are bounded, except for entries that
// other goroutines add while entries are evicted. The W-TinyLFU policy evicts the
// entries least likely to be used again; a burst of texts that are seen once does not
// flush the cache.
type PrefixCache struct {
	parts *otter.Cache[uint64, *prefixEntry]
	seed  uint64

	lookups, hits  atomic.Uint64
	tokens, reused atomic.Uint64
}

// prefixEntry is what a part became. It is immutable.
type prefixEntry struct {
	text string
	ids  []uint32
	mode prefixMode
}

// prefixMode is all besides the bytes that ids depend on, and whose they are.
type prefixMode struct {
	t     *Tokenizer
	plain bool // EncodeOptions.PlainText
	// leads is set if the part begins the text, which some normalizers treat
	// differently.
	leads    bool
	division uint64 // EncodeOptions.Division
}

// seed keeps parts of the same bytes and different modes out of each other's
// place.
func (m prefixMode) seed(seed uint64) uint64 {
	seed += uint64(uintptr(unsafe.Pointer(m.t)))
	if m.plain {
		seed++
	}
	if m.leads {
		seed += 2
	}
	return seed ^ m.division
}

// NewPrefixCache makes a cache that holds at most so many bytes.
func NewPrefixCache(bytes int64) *PrefixCache {
	return &PrefixCache{
		seed: rand.Uint64(),
		parts: otter.Must(&otter.Options[uint64, *prefixEntry]{
			MaximumWeight: uint64(max(bytes, 1)),
			Weigher: func(_ uint64, e *prefixEntry) uint32 {
				return uint32(prefixOverhead + len(e.text) + 4*len(e.ids))
			},
			// Maintenance is short and belongs to the worker that caused it; the
			// cache has no goroutine of its own.
			Executor: func(run func()) { run() },
		}),
	}
}

// PrefixStats are a cache's counts since it was made.
type PrefixStats struct {
	Lookups, Hits uint64 // of parts
	// Tokens are all those of texts that were encoded with the cache, and
	// Reused those of them that it had.
	Tokens, Reused uint64
	Entries        int
	Bytes          uint64 // held now
}

// Stats returns the counts so far.
func (c *PrefixCache) Stats() PrefixStats {
	return PrefixStats{
		Lookups: c.lookups.Load(), Hits: c.hits.Load(), Tokens: c.tokens.Load(), Reused: c.reused.Load(),
		Entries: c.parts.EstimatedSize(), Bytes: c.parts.WeightedSize(),
	}
}

// prefixUse is an encoder's use of a cache during one Encode.
type prefixUse struct {
	cache                 *PrefixCache
	text                  string // all of it
	lookups, hits, reused int
}

// end adds the counts of an Encode that gave so many ids.
func (u *prefixUse) end(tokens int) {
	if c := u.cache; c != nil {
		c.lookups.Add(uint64(u.lookups))
		c.hits.Add(uint64(u.hits))
		c.reused.Add(uint64(u.reused))
		c.tokens.Add(uint64(tokens))
	}
	*u = prefixUse{}
}

// offset is where in the text a part of it begins.
func (u *prefixUse) offset(part string) int {
	return int(uintptr(unsafe.Pointer(unsafe.StringData(part))) - uintptr(unsafe.Pointer(unsafe.StringData(u.text))))
}

// reuse appends the ids of a segment between added tokens, by parts, from the
// cache where it has them. It checks the UTF-8 of what it does not find: what
// it finds was checked when it was put there.
func (e *Encoder) reuse(dst []uint32, s string, o EncodeOptions) ([]uint32, error) {
	for from := 0; from < len(s); {
		end := e.t.lineCuts.part(s, from)
		var err error
		if dst, err = e.reusePart(dst, s[from:end], o); err != nil {
			return dst, err
		}
		from = end
	}
	return dst, nil
}

func (e *Encoder) reusePart(dst []uint32, s string, o EncodeOptions) ([]uint32, error) {
	u := &e.prefix
	mode := prefixMode{e.t, o.PlainText, u.offset(s) == 0, o.Division}
	if len(s) < prefixShortest {
		return e.encodePart(dst, s, o, mode.leads)
	}
	hash := xxh3.HashStringSeed(s, mode.seed(u.cache.seed))
	u.lookups++
	if found, ok := u.cache.parts.GetIfPresent(hash); ok && found.mode == mode && found.text == s {
		u.hits++
		u.reused += len(found.ids)
		dst = append(dst, found.ids...)
		if e.work -= len(s) / 32; e.work <= 0 {
			return dst, e.pauseAt(len(dst))
		}
		return dst, nil
	}
	before := len(dst)
	dst, err := e.encodePart(dst, s, o, mode.leads)
	if err == nil {
		ids := append(make([]uint32, 0, len(dst)-before), dst[before:]...)
		u.cache.parts.Set(hash, &prefixEntry{strings.Clone(s), ids, mode})
	}
	return dst, err
}

// encodePart encodes a part that is not found.
func (e *Encoder) encodePart(dst []uint32, s string, o EncodeOptions, first bool) ([]uint32, error) {
	if err := e.validate(s, e.prefix.offset(s)); err != nil {
		return dst, err
	}
	return e.normalized(dst, s, o, first)
}

// lineCuts reports whether a long segment may be cut between a line break and an
// ASCII letter without changing its ids.
type lineCuts uint8

const (
	noCuts lineCuts = iota
	// cutsAfterText wants a byte before the line break that is no white space:
	// GPT-2's pattern takes a run of white space apart by what follows it.
	cutsAfterText
	cutsAnywhere
)

// part returns the end of the part that begins at from.
func (c lineCuts) part(s string, from int) int {
	if c == noCuts || len(s)-from <= prefixPart {
		return len(s)
	}
	for i := from + prefixPart; ; {
		skip := strings.IndexByte(s[i:], '\n')
		if skip < 0 || i+skip+1 == len(s) {
			return len(s)
		}
		i += skip + 1
		if kinds[s[i]] == kindLetter && (c == cutsAnywhere || kinds[s[i-2]]&(kindSpace|kindHigh) == 0) {
			return i
		}
	}
}

// readLineCuts decides it from the file, for what is known to allow it and
// nothing else.
//
// The pre-tokenizer must cut there, whatever stands around: each of the
// patterns takes a line break with the white space before it, or after
// punctuation, never with a letter behind it, and what it does on one side
// never depends on the other. The normalizer must not look across: NFC does
// not, since an ASCII letter joins nothing before it. And no added token that
// is looked for in normalized text may reach across, by its own bytes or by the
// white space it swallows.
func readLineCuts(doc *document) lineCuts {
	if !onlyNFC(doc.Normalizer) {
		return noCuts
	}
	for _, token := range doc.AddedTokens {
		if token.Normalized && (token.LStrip || token.RStrip || strings.Contains(token.Content, "\n")) {
			return noCuts
		}
	}
	return preTokenizerCuts(doc.PreTokenizer)
}

// component is what these questions ask of a normalizer or pre-tokenizer.
type component struct {
	Type    string `json:"type"`
	Pattern struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Behavior       string           `json:"behavior"`
	Invert         bool             `json:"invert"`
	AddPrefixSpace bool             `json:"add_prefix_space"`
	UseRegex       *bool            `json:"use_regex"`
	Normalizers    []jsontext.Value `json:"normalizers"`
	PreTokenizers  []jsontext.Value `json:"pretokenizers"`
}

// readComponent returns no type for what is not there or unknown.
func readComponent(raw jsontext.Value) (c component) {
	n := node{value: raw}
	if n.null() || n.scan(&c) != nil {
		return component{}
	}
	return c
}

func onlyNFC(raw jsontext.Value) bool {
	c := readComponent(raw)
	notNFC := func(part jsontext.Value) bool { return !onlyNFC(part) }
	return len(raw) == 0 || raw.Kind() == 'n' || c.Type == "NFC" || c.Type == "Sequence" && !slices.ContainsFunc(c.Normalizers, notNFC)
}

// preTokenizerCuts looks for a pattern that cuts there, and for nothing that
// might stand in its way.
func preTokenizerCuts(raw jsontext.Value) lineCuts {
	parts := []jsontext.Value{raw}
	if c := readComponent(raw); c.Type == "Sequence" {
		parts = c.PreTokenizers
	}
	cuts := noCuts
	for _, raw := range parts {
		c := readComponent(raw)
		here := noCuts
		switch c.Type {
		case "ByteLevel":
			if c.AddPrefixSpace {
				return noCuts
			}
			if c.UseRegex != nil && !*c.UseRegex {
				continue
			}
			here = cutsAfterText
		case "Split":
			if c.Behavior != "Isolated" && !(c.Behavior == "Removed" && c.Invert) {
				return noCuts
			}
			switch c.Pattern.Regex {
			case patternDigits, patternDigit, patternHanKana:
				continue // cut elsewhere
			case patternGPT2:
				here = cutsAfterText
			case patternLlama3, patternQwen2, patternQwen35, patternO200k, patternTekken, patternKimi, patternDeep:
				here = cutsAnywhere
			default:
				return noCuts
			}
		default:
			return noCuts
		}
		if cuts == noCuts || here < cuts {
			cuts = here
		}
	}
	return cuts
}
