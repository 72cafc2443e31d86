package sglang

import (
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

// Every nested field with values of every wrong type.
func TestNested(t *testing.T) {
	const sampling = `{"max_new_tokens":5,"min_new_tokens":1,"temperature":1,"top_p":1,"top_k":1,"min_p":0.5,"frequency_penalty":1,"presence_penalty":1,"repetition_penalty":1.5,` +
		`"logit_bias":{"5":1},"sampling_seed":1,"stop":["a"],"stop_token_ids":[1],"no_stop_trim":true,"ignore_eos":true,"skip_special_tokens":true,"stream_interval":1,"n":1`
	dialecttest.Nested(t, func(body string) (*dialect.LeftOut, error) {
		return dialecttest.LeftOut(decode(body, infer.CarriesAll))
	}, Fields(),
		`{"text":"x","sampling_params":`+sampling+`}}`,
		`{"text":["x"],"rid":["r"],"return_logprob":[true],"sampling_params":{"stop":"a"}}`,
		`{"input_ids":[1],"sampling_params":{"json_schema":{},"stop":"a"}}`,
		`{"input_ids":[[1]],"sampling_params":{"json_schema":"{}","max_new_tokens":null}}`,
		`{"text":"x","sampling_params":{"regex":"a"}}`,
		`{"text":"x","sampling_params":{"ebnf":"a"}}`,
		`{"text":"x","sampling_params":{"structural_tag":"{}"}}`,
		`{"text":"x","image_data":["https://h/a.png"],"video_data":["https://h/a.mp4"],"audio_data":["https://h/a.wav"]}`,
	)
}
