package dialect

import (
	"testing"

	"weir/internal/infer"
)

func TestParseUsage(t *testing.T) {
	for text, want := range map[string]infer.Usage{
		`{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3}}`:                                      {PromptTokens: 5, CompletionTokens: 3, CachedTokens: -1},
		`{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}`:             {},
		`{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}} trailing`:                         {PromptTokens: 5, CachedTokens: 4},
		`{"prompt_tokens":5,"prompt_tokens_details":null}`:                                                 {PromptTokens: 5, CachedTokens: -1},
		`{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":3}`:                  {PromptTokens: 5, CompletionTokens: 3, CachedTokens: 4},
		`{"input_tokens":5,"output_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":2}`: {PromptTokens: 11, CompletionTokens: 3, CachedTokens: 4},
		`{"input_tokens":5,"cache_read_input_tokens":null,"cache_creation_input_tokens":0}`:                {PromptTokens: 5, CachedTokens: -1},
		`{"input_tokens":5,"cache_read_input_tokens":-1}`:                                                  {},
		`{"prompt_tokens":-1}`:                      {},
		`{"output_tokens":-1}`:                      {},
		`{"prompt_tokens":"5"}`:                     {},
		`{"prompt_tokens":0,"completion_tokens":0}`: {CachedTokens: -1},
		`null`: {},
		`{}`:   {},
		`{"total_tokens":5,"prompt_tokens":null}`: {},
		``:                       {},
		`{"prompt_tokens":1e400`: {},
	} {
		if got, ok := ParseUsage([]byte(text)); got != want || ok != (want != infer.Usage{}) {
			t.Errorf("%q: %+v, %t; want %+v", text, got, ok, want)
		}
	}
}
