// Package tokenizer turns text into the ids a model was trained on, and ids
// back into text.
//
// [Load] reads a Hugging Face model folder. What it can load it loads exactly:
// ids equal those of Hugging Face's own tokenizers library, which is proved
// against that library over megabytes of many scripts (interop/tokenizer) and
// not argued. What it cannot load exactly it refuses, naming the file and the
// place in it.
//
// # What is supported
//
// Of tokenizer.json:
//
//   - models: BPE, over bytes (with pre-tokenizer ByteLevel) or over runes as
//     SentencePiece does it, with unk_token, fuse_unk, byte_fallback and
//     ignore_merges; Unigram, with byte_fallback. Not: dropout, a subword prefix,
//     an end-of-word suffix, WordPiece, WordLevel, Unigram without unk_id.
//   - normalizers: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Nmt,
//     Replace, Prepend, Precompiled, ByteLevel, Sequence.
//   - pre-tokenizers: ByteLevel, Metaspace, Split with every behaviour, Digits,
//     Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Sequence.
//     Metaspace's scheme "first" only after normalizers that leave the beginning
//     of the text where it is.
//   - regular expressions in Split and Replace: those of [Grammars] by scanners
//     of their own; any other by an engine that means by them what Oniguruma
//     does, in a bounded number of steps for each text. What is not sure to mean
//     the same is refused: back references, folding beyond ASCII, \G, POSIX
//     brackets, repetitions of what may match no text, among others.
//   - decoders: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip at the
//     beginning, Sequence of them in the order in which SentencePiece's
//     vocabularies have them; none.
//   - post-processors: ByteLevel, TemplateProcessing, Sequence. Added tokens with
//     all their flags.
//
// Truncation and padding settings are not applied: serving never cuts or pads a
// prompt. Nor is clean_up_tokenization_spaces, which changes decoded text behind
// the model's back and which engines leave out of their streams.
//
// Of tiktoken's rank files those whose grammar the folder makes known: Qwen-1's
// qwen.tiktoken, Kimi's tiktoken.model, and Llama-3's tokenizer.model beside its
// params.json; and Mistral's tekken.json, whose ids equal those of Mistral's own
// library. Ids equal those of the tiktoken library. The models' own Python
// wrappers also cut a text after every 400,000 characters, and runs with or
// without white space after 25,000, to spare that library; that is not done here.
//
// # Encoding
//
// An [Encoder] belongs to one goroutine at a time and is reused. Text is cut
// into segments at added tokens; a segment is normalized and cut into pieces by
// the pre-tokenizers, the last of a byte-level vocabulary being a hand-written
// scanner of its pattern; and a piece becomes ids by
//
//  1. one probe of a table shared by all encoders, which holds every token
//     that its own bytes encode to: most words of most texts end here;
//  2. one probe of the encoder's own cache of pieces of several tokens;
//  3. merging, linear for short pieces, by a priority queue for long ones, so
//     that a hundred kilobytes of one letter are no attack; or for Unigram the
//     best path through the piece.
//
// SentencePiece-style vocabularies often have no pre-tokenizer, and the whole
// prompt is one word. It is cut before merging wherever no merge can join what is
// on both sides, which changes nothing and makes pieces of it that are about
// words (see joints).
//
// Nothing is allocated per piece. Encode lets other goroutines run at least
// about every 250 us and notices then that its context is done.
//
// The Unicode tables are the reference's own, read off it by
// tools/vocab/unicode.py: neither Go's nor those of golang.org/x/text agree
// with it.
//
// # Decoding
//
// A [Detokenizer] turns ids into text as they come, never splitting a rune and
// holding back what may be the beginning of a stop string. However the ids
// are cut into calls, the text is what decoding them at once gives; only inside
// runs of fallback bytes that are not valid UTF-8 it may differ, as Detokenizer
// says.
package tokenizer
