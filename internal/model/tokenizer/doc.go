// Package tokenizer turns text into the ids a model was trained on, and ids
// back into text.
//
// [Load] reads a Hugging Face model folder. A loaded tokenizer is exact: its ids equal
// those of Hugging Face's own tokenizers library. Tests compare it with that library
// over megabytes of text in many scripts (interop/tokenizer). Load refuses a folder
// that it cannot load exactly and names the file and the place in it.
//
// # What is supported
//
// In tokenizer.json:
//
//   - models: BPE, over bytes (with pre-tokenizer ByteLevel) or over runes as
//     SentencePiece does it, with unk_token, fuse_unk, byte_fallback and
//     ignore_merges; Unigram, with byte_fallback. Not: dropout, a subword prefix,
//     an end-of-word suffix, WordPiece, WordLevel, Unigram without unk_id.
//   - normalizers: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Nmt,
//     Replace, Prepend, Precompiled, ByteLevel, Sequence.
//   - pre-tokenizers: ByteLevel, Metaspace, Split with every behaviour, Digits,
//     Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Sequence.
//     Metaspace's scheme "first" is supported only after normalizers that do not move
//     the beginning of the text.
//   - regular expressions in Split and Replace: those in [Grammars] have hand-written
//     scanners; any other runs on an engine with the semantics of Oniguruma, in a
//     bounded number of steps for each text. Constructs whose meaning might differ are
//     refused: back references, folding beyond ASCII, \G, POSIX brackets, repetitions
//     of what may match no text, among others.
//   - decoders: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip at the
//     beginning, Sequence of them in the order of SentencePiece's vocabularies; none.
//   - post-processors: ByteLevel, TemplateProcessing, Sequence. Added tokens with
//     all their flags.
//
// Truncation and padding settings are not applied: serving never cuts or pads a prompt.
// Neither is clean_up_tokenization_spaces, which changes decoded text and which engines
// do not apply to streams.
//
// Rank files of tiktoken are supported if the folder identifies their grammar: Qwen-1's
// qwen.tiktoken, Kimi's tiktoken.model, and Llama-3's tokenizer.model beside its
// params.json. Their ids equal those of the tiktoken library. The models' Python
// wrappers also cut a text after every 400,000 characters, and runs with or without
// white space after 25,000, to protect that library; this package does not. Mistral's
// tekken.json is supported too, with the ids of Mistral's own library.
//
// # Encoding
//
// An [Encoder] belongs to one goroutine at a time and is reused. Text is cut
// into segments at added tokens; a segment is normalized and cut into pieces by
// the pre-tokenizers, the last of a byte-level vocabulary being a hand-written
// scanner of its pattern, with a shorter way for ASCII text (asciiPieces); and a piece
// becomes ids by
//
//  1. one probe of a table shared by all encoders, with the bytes of every token and a
//     mark that says whether they encode to it, which is set when the token is first
//     met: most words of most texts end here;
//  2. one probe of a cache of pieces of several tokens: of short ones, which all encoders
//     share, or of long ones, which is the encoder's own;
//  3. merging: linear for short pieces, and with a priority queue for long ones, so
//     that a hundred kilobytes of one letter are not an attack; or, for Unigram, the
//     best path through the piece.
//
// SentencePiece-style vocabularies often have no pre-tokenizer, so the whole prompt is
// one word. It is cut before merging wherever no merge can cross the cut, which does
// not change the result and gives pieces about as long as words (see joints).
//
// Nothing is allocated per piece. About every 250 us or sooner, Encode lets other
// goroutines run and checks its context.
//
// The Unicode tables are extracted from the reference by tools/vocab/unicode.py,
// because those of Go and of golang.org/x/text differ from it.
//
// # Decoding
//
// A [Detokenizer] decodes ids to text as they arrive. It never splits a rune, and it
// holds back text that may be the beginning of a stop string. The text does not depend
// on how the ids are split into calls, except inside runs of fallback bytes that are
// not valid UTF-8 (see Detokenizer).
package tokenizer
