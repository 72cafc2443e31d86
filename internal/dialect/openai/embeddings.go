package openai

import (
	"slices"

	"weir/internal/dialect"
)

// EmbeddingFields lists the fields of /v1/embeddings that OpenAI's API and the engines have, in
// a fixed order. The path is served by relays alone: a carried field reaches the engine byte for
// byte, as does any field that is not in the list, and a refused one steers engines (package
// allow). Nothing is decoded by this table.
func EmbeddingFields() []dialect.Field { return slices.Clone(embeddingFields) }

const (
	vllmHas = dialect.VLLMReads
	ofChat  = "for an input that is a conversation"
)

var embeddingFields = []dialect.Field{
	{Name: "model", Note: "a string; an alias becomes the engine's own name", Elsewhere: dialect.BothRead},
	{Name: "input", Note: "a string, an array of strings, token ids, or an array of arrays of token ids; weir reads it to choose an engine by the beginning of the text", Elsewhere: "both read it; vLLM takes conversations too"},
	{Name: "encoding_format", Note: "float or base64", Elsewhere: "vLLM reads it and also has bytes and bytes_only; SGLang always answers with floats"},
	{Name: "dimensions", Note: "an integer, for models that can", Elsewhere: dialect.BothRead},
	{Name: "user", Note: "names the end user", Elsewhere: dialect.BothPass},

	{Name: "truncate_prompt_tokens", Note: "an integer from -1: how many tokens are kept of a longer input", Elsewhere: vllmHas},
	{Name: "truncation_side", Note: "left or right", Elsewhere: vllmHas},
	{Name: "padding", Note: "max_length or do_not_pad", Elsewhere: vllmHas},
	{Name: "add_special_tokens", Note: "a boolean", Elsewhere: vllmHas},
	{Name: "use_activation", Note: "a boolean", Elsewhere: vllmHas},
	{Name: "embed_dtype", Note: "the type of the numbers in base64", Elsewhere: vllmHas},
	{Name: "endianness", Note: "the order of their bytes", Elsewhere: vllmHas},
	{Name: "messages", Note: "a conversation instead of input; references in it are judged as in chats", Elsewhere: vllmHas},
	{Name: "add_generation_prompt", Note: ofChat, Elsewhere: vllmHas},
	{Name: "continue_final_message", Note: ofChat, Elsewhere: vllmHas},
	{Name: "chat_template_kwargs", Note: ofChat, Elsewhere: vllmHas},

	{Name: "chat_template", Treatment: Refused, Note: steers, Elsewhere: vllmHas},
	{Name: "mm_processor_kwargs", Treatment: Refused, Note: steers, Elsewhere: vllmHas},
	{Name: "media_io_kwargs", Treatment: Refused, Note: steers, Elsewhere: vllmHas},
	{Name: "priority", Treatment: Refused, Note: steers, Elsewhere: dialect.BothRead},
	{Name: "cache_salt", Treatment: Refused, Note: steers, Elsewhere: vllmHas},
	{Name: "request_id", Treatment: Refused, Note: steers, Elsewhere: vllmHas},
	{Name: "rid", Treatment: Refused, Note: steers, Elsewhere: dialect.SGLangReads},
}

const steers = "it [steers the engine](#what-steers-an-engine)"
