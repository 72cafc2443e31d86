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
// Byte-level BPE: a "BPE" model whose vocabulary has the byte alphabet;
// normalizer none or NFC; pre-tokenizer ByteLevel (GPT-2's pattern), or a
// sequence of Split and ByteLevel whose patterns are known (see [Grammars]);
// post-processors ByteLevel and TemplateProcessing; added tokens with all
// their flags; ignore_merges. Truncation and padding settings are not applied:
// serving never cuts or pads a prompt. Nor is clean_up_tokenization_spaces,
// which changes decoded text behind the model's back and which engines leave
// out of their streams.
//
// # Encoding
//
// An [Encoder] belongs to one goroutine at a time and is reused. Text is cut
// into segments at added tokens, a segment into pieces by a hand-written
// scanner of the grammar's pattern, and a piece becomes ids by
//
//  1. one probe of a table shared by all encoders, which holds every token
//     that its own bytes encode to: most words of most texts end here;
//  2. one probe of the encoder's own cache of pieces of several tokens;
//  3. merging, linear for short pieces, by a priority queue for long ones, so
//     that a hundred kilobytes of one letter are no attack.
//
// Nothing is allocated per piece. Encode lets other goroutines run at least
// about every 250 us and notices then that its context is done.
//
// The Unicode tables are the reference's own, read off it by
// tools/vocab/unicode.py: neither Go's nor those of golang.org/x/text agree
// with it.
//
// # Reuse
//
// A [PrefixCache] remembers what parts of earlier texts became, for all
// encoders together: the segments between added tokens, and parts of long ones
// where the grammar allows it. [EncodeOptions.Prefix] turns it on.
//
// # Decoding
//
// A [Detokenizer] turns ids into text as they come, never splitting a rune and
// holding back what may be the beginning of a stop string. However the ids
// are cut into calls, the text is what decoding them at once gives.
package tokenizer
