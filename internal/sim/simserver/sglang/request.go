package sglang

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect/media"
	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/workload/content"
)

// generateRequest holds the fields that /generate reads. Fields that may be one value or a
// list with one per item are raw.
type generateRequest struct {
	RID            jsontext.Value `json:"rid"`
	Text           jsontext.Value `json:"text"`
	InputIDs       jsontext.Value `json:"input_ids"`
	SamplingParams jsontext.Value `json:"sampling_params"`
	Stream         bool           `json:"stream"`

	ReturnLogprob        jsontext.Value `json:"return_logprob"`
	LogprobStartLen      jsontext.Value `json:"logprob_start_len"`
	TopLogprobsNum       jsontext.Value `json:"top_logprobs_num"`
	TokenIDsLogprob      jsontext.Value `json:"token_ids_logprob"`
	ReturnTextInLogprobs bool           `json:"return_text_in_logprobs"`
	ReturnPromptTokenIDs bool           `json:"return_prompt_token_ids"`

	ImageData jsontext.Value `json:"image_data"`
	AudioData jsontext.Value `json:"audio_data"`
	VideoData jsontext.Value `json:"video_data"`

	LoRAPath         jsontext.Value `json:"lora_path"`
	RoutedDPRank     *int           `json:"routed_dp_rank"`
	DataParallelRank *int           `json:"data_parallel_rank"`
	Priority         int            `json:"priority"`

	// Not simulated.
	InputEmbeds          jsontext.Value `json:"input_embeds"`
	SessionParams        jsontext.Value `json:"session_params"`
	CustomLogitProcessor jsontext.Value `json:"custom_logit_processor"`
	ReturnHiddenStates   jsontext.Value `json:"return_hidden_states"`
	ReturnRoutedExperts  jsontext.Value `json:"return_routed_experts"`

	fields.Pair
	fields.Salt
	fields.Unread
}

// samplingParams are /generate's sampling_params. Null means the default;
// SGLang refuses a name that it does not know.
type samplingParams struct {
	MaxNewTokens   jsontext.Value     `json:"max_new_tokens"` // null is what the context leaves
	MinNewTokens   *int               `json:"min_new_tokens"`
	Stop           jsontext.Value     `json:"stop"`
	StopTokenIDs   []uint32           `json:"stop_token_ids"`
	StopRegex      jsontext.Value     `json:"stop_regex"`
	N              *int               `json:"n"`
	BeamWidth      *int               `json:"beam_width"`
	JSONSchema     jsontext.Value     `json:"json_schema"`
	Regex          jsontext.Value     `json:"regex"`
	EBNF           jsontext.Value     `json:"ebnf"`
	StructuralTag  jsontext.Value     `json:"structural_tag"`
	IgnoreEOS      *bool              `json:"ignore_eos"`
	NoStopTrim     *bool              `json:"no_stop_trim"`
	StreamInterval *int               `json:"stream_interval"`
	LogitBias      map[string]float64 `json:"logit_bias"`
	SamplingSeed   *int64             `json:"sampling_seed"`

	SkipSpecialTokens *bool          `json:"skip_special_tokens"`
	SpacesBetween     *bool          `json:"spaces_between_special_tokens"`
	CustomParams      jsontext.Value `json:"custom_params"`

	fields.Distribution
}

// defaultNewTokens is max_new_tokens where none is given.
const defaultNewTokens = 128

// check refuses values out of SGLang's ranges.
func (p *samplingParams) check(vocabulary int) error {
	if err := p.Distribution.Check(&fields.SGLangBounds); err != nil {
		return err
	}
	limit, err := p.limit()
	if err != nil {
		return err
	}
	if limit < toContext {
		return infer.Invalid("max_new_tokens", "max_new_tokens is %d; it must not be negative", limit)
	}
	if low := fields.ValueOr(p.MinNewTokens, 0); low < 0 || low > limit && limit != toContext {
		return infer.Invalid("min_new_tokens", "min_new_tokens is %d; it must be from 0 to max_new_tokens, which is %d", low, limit)
	}
	if n := fields.ValueOr(p.N, 1); n < 1 || n > fields.MaxChoices {
		return infer.Invalid("n", "n is %d; it must be from 1 to %d", n, fields.MaxChoices)
	}
	if i := fields.ValueOr(p.StreamInterval, 1); i < 1 {
		return infer.Invalid("stream_interval", "stream_interval is %d; it must be at least 1", i)
	}
	for id := range p.LogitBias {
		if n, err := strconv.Atoi(id); err != nil || n < 0 || vocabulary > 0 && n >= vocabulary {
			return infer.Invalid("logit_bias", "logit_bias has %q; its names are token ids below %d", id, vocabulary)
		}
	}
	grammars := 0
	for _, v := range []jsontext.Value{p.JSONSchema, p.Regex, p.EBNF, p.StructuralTag} {
		if fields.Given(v) {
			grammars++
		}
	}
	if grammars > 1 {
		return infer.Invalid("sampling_params", "json_schema, regex, ebnf and structural_tag exclude each other; give one of them")
	}
	if fields.Given(p.StopRegex) {
		return fields.NotSimulated("stop_regex")
	}
	switch {
	case fields.ValueOr(p.BeamWidth, 1) > 1:
		return fields.NotSimulated("beam_width")
	case !p.bansStops():
		return fields.NotSimulated("logit_bias")
	case !fields.ValueOr(p.SkipSpecialTokens, true):
		return fields.NotSimulated("skip_special_tokens")
	}
	return nil
}

// toContext is the limit of an output that ends where the context does.
const toContext = -1

// limit returns max_new_tokens.
func (p *samplingParams) limit() (int, error) {
	switch p.MaxNewTokens.Kind() {
	case 0:
		return defaultNewTokens, nil
	case 'n':
		return toContext, nil
	}
	var n int
	if err := json.Unmarshal(p.MaxNewTokens, &n); err != nil || n == toContext {
		return 0, infer.Invalid("max_new_tokens", "max_new_tokens is %.32s; it must be a whole number from 0, or null for what the context leaves", p.MaxNewTokens)
	}
	return n, nil
}

// item is one of the outputs of a request to /generate, in its own words.
type item struct {
	rid    string
	limit  int // max_new_tokens
	hidden bool

	logprob  bool
	start    int // of the prompt's log probabilities; -1 for none
	top      int
	wanted   []uint32 // ids whose log probability is asked for
	withText bool

	media  [infer.NumMediaKinds]int // tokens of the prompt
	ask    content.Ask
	params sim.Params
	stops  []string
	trim   bool
	giveUp error // what the scheduler says, which gives the request up
	pair   fields.Pairing
}

// items divides a request into its outputs. batch reports whether the answer is a list.
func (f *Server) items(ctx context.Context, id string, req *generateRequest) (items []item, batch bool, err error) {
	if err := req.simulated(); err != nil {
		return nil, false, err
	}
	prompts, batch, err := f.generatePrompts(req)
	if err != nil {
		return nil, false, err
	}
	sampling, err := fields.PerItem[samplingParams]("sampling_params", req.SamplingParams, '{', len(prompts), json.RejectUnknownMembers(true))
	if err != nil {
		return nil, false, err
	}
	shown, err := req.media(len(prompts), batch)
	if err != nil {
		return nil, false, err
	}
	n, err := f.checkSampling(sampling)
	if err != nil {
		return nil, false, err
	}
	batch = batch || n > 1
	if len(prompts)*n > fields.MaxChoices {
		return nil, false, infer.Invalid("n", "%d prompts of n = %d are more than %d outputs", len(prompts), n, fields.MaxChoices)
	}
	rids, err := fields.RIDs(req.RID, batch, len(prompts), n)
	if err != nil {
		return nil, false, err
	}
	each, err := f.itemOfEach(req, len(prompts))
	if err != nil {
		return nil, false, err
	}
	pairs, err := req.Pair.Each(len(prompts), n)
	if err != nil {
		return nil, false, err
	}
	for i, prompt := range prompts {
		full, err := f.vocab.Expand(ctx, cmp.Or(id, rids[i*n]), prompt, shown[i])
		if err != nil {
			return nil, false, err
		}
		it := each[i]
		it.media, it.params.Prompt = full.Tokens, full.IDs
		if err := f.sample(&it, &sampling[i]); err != nil {
			return nil, false, err
		}
		for k := range n {
			one := it
			one.rid, one.pair = rids[i*n+k], pairs[i*n+k]
			if f.run.Role() == infer.RoleDecode {
				one.start = -1 // the prefill leg has those of the prompt
			}
			one.params.Seed += uint64(k) * 0x9e3779b97f4a7c15
			items = append(items, one)
		}
	}
	return items, batch, nil
}

// simulated returns an error for a field that the engine does not simulate.
func (r *generateRequest) simulated() error {
	for _, f := range []struct {
		name  string
		value jsontext.Value
	}{
		{"input_embeds", r.InputEmbeds},
		{"session_params", r.SessionParams}, {"custom_logit_processor", r.CustomLogitProcessor},
		{"return_hidden_states", r.ReturnHiddenStates}, {"return_routed_experts", r.ReturnRoutedExperts},
	} {
		if fields.Given(f.value) {
			return fields.NotSimulated(f.name)
		}
	}
	return generateLacks.Refuse(r.Rest)
}

// checkSampling checks each prompt's parameters, and returns their common n.
func (f *Server) checkSampling(sampling []samplingParams) (n int, err error) {
	n = fields.ValueOr(sampling[0].N, 1)
	for i := range sampling {
		if err := sampling[i].check(f.run.Options().VocabSize); err != nil {
			return 0, err
		}
		if fields.ValueOr(sampling[i].N, 1) != n {
			return 0, infer.Invalid("n", "n must be the same for all items of a batch")
		}
	}
	return n, nil
}

// itemOfEach returns an item for each of n prompts, with the fields beside sampling_params,
// each of which is one value or a list of n.
func (f *Server) itemOfEach(req *generateRequest, n int) ([]item, error) {
	items, err := f.logprobItems(req, item{withText: req.ReturnTextInLogprobs}, n)
	if err != nil {
		return nil, err
	}
	loras, err := fields.PerItem[string]("lora_path", req.LoRAPath, '"', n)
	if err != nil {
		return nil, err
	}
	salts, err := req.Salt.SGLang(n)
	if err != nil {
		return nil, err
	}
	for i := range items {
		items[i].params = sim.Params{
			Priority: req.Priority, LoRA: loras[i], CacheSalt: salts[i],
			DPRank: cmp.Or(req.RoutedDPRank, req.DataParallelRank),
		}
	}
	return items, nil
}

// sample adds a prompt's parameters to its item. The item has its prompt.
func (f *Server) sample(it *item, s *samplingParams) (err error) {
	flags, p := f.flags, &it.params
	if it.limit, err = s.limit(); err != nil {
		return err
	}
	if it.limit == toContext {
		it.limit = max(1, f.run.Options().Room(len(p.Prompt)))
	}
	it.trim = !fields.ValueOr(s.NoStopTrim, false)
	if it.stops, err = fields.Stops(s.Stop); err != nil {
		return err
	}
	if err := flags.Blind(fields.ValueOr(s.MinNewTokens, 0), it.stops); err != nil {
		return err
	}
	if err := f.askFormat(it, s); err != nil {
		return err
	}
	// The prompt alone is a prompt and a token that is not shown.
	it.hidden = it.limit == 0
	p.MaxTokens, p.MinTokens = max(1, it.limit), fields.ValueOr(s.MinNewTokens, 0)
	p.StreamInterval = fields.ValueOr(s.StreamInterval, 0)
	// Stop ids are not heeded either if the end of the sequence is not.
	if p.IgnoreEOS = fields.ValueOr(s.IgnoreEOS, false); !p.IgnoreEOS {
		p.StopIDs = slices.DeleteFunc(slices.Clone(s.StopTokenIDs), s.banned)
	}
	if flags.Deterministic {
		p.Seed = uint64(fields.ValueOr(s.SamplingSeed, 0))
	}
	return f.fits(len(p.Prompt), it.limit)
}

// impossible is a bias that no id has a chance against.
const impossible = -100

// bansStops reports whether the biases ban ids that would end the answer and do nothing else:
// that the engine does. A caller without min_new_tokens holds an answer's end back by it.
func (p *samplingParams) bansStops() bool {
	for id, bias := range p.LogitBias {
		n, err := strconv.Atoi(id)
		if err != nil || bias > impossible || !slices.Contains(p.StopTokenIDs, uint32(n)) {
			return false
		}
	}
	return true
}

// banned reports whether an id has no chance.
func (p *samplingParams) banned(id uint32) bool {
	bias, ok := p.LogitBias[strconv.FormatUint(uint64(id), 10)]
	return ok && bias <= impossible
}

// askFormat sets the form that the output must have, or the error of a scheduler that has no
// backend for such forms.
func (f *Server) askFormat(it *item, s *samplingParams) error {
	if fields.Given(s.JSONSchema) || fields.Given(s.Regex) || fields.Given(s.EBNF) || fields.Given(s.StructuralTag) {
		it.giveUp = f.flags.Guided()
	}
	if it.giveUp != nil {
		return nil // it needs no document
	}
	form := fields.Mode{JSONSchema: s.JSONSchema, Regex: s.Regex, EBNF: s.EBNF, StructuralTag: s.StructuralTag}
	if err := form.AskFormat(&it.ask); err != nil {
		return err
	}
	if it.ask.Schema != nil {
		it.ask.Mode = content.ModeJSON // whatever tools the prompt offers: it is all that may be generated
	}
	return nil
}

// media returns the media of each of n prompts. A request without a batch may have one
// value of a kind or a list of them, a batch has a list with one or a list of them for each
// prompt.
func (r *generateRequest) media(n int, batch bool) ([][]vocab.Medium, error) {
	all := make([][]vocab.Medium, n)
	for kind, v := range [infer.NumMediaKinds]jsontext.Value{r.ImageData, r.AudioData, r.VideoData} {
		kind := infer.MediaKind(kind)
		field := kind.String() + "_data"
		add := func(i int, v jsontext.Value) error {
			var list []string
			if v.Kind() == '"' {
				list = []string{""}
				_ = json.Unmarshal(v, &list[0]) // its syntax was checked
			} else if fields.Given(v) {
				if err := json.Unmarshal(v, &list); err != nil {
					return infer.Invalid(field, "%s must be a string or a list of strings: %v", field, err)
				}
			}
			for _, text := range list {
				m, err := readMedium(field, kind, text)
				if err != nil {
					return err
				}
				all[i] = append(all[i], m)
			}
			return nil
		}
		if !batch || v.Kind() != '[' {
			for i := range all {
				if err := add(i, v); err != nil {
					return nil, err
				}
			}
			continue
		}
		var each []jsontext.Value
		if err := json.Unmarshal(v, &each); err != nil || len(each) != n {
			return nil, infer.Invalid(field, "The length of %s should be equal to the batch size.", field)
		}
		for i, v := range each {
			if err := add(i, v); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// readMedium reads one of image_data and the others: a URL, a data URL or, of an
// image, base64 alone. A path of a file is none of the caller's business here.
func readMedium(field string, kind infer.MediaKind, text string) (vocab.Medium, error) {
	if kind == infer.MediaImage && !strings.Contains(text[:min(len(text), 16)], ":") {
		b, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil {
			return vocab.Medium{}, infer.Invalid(field, "%s is neither a URL nor base64: %v", field, err)
		}
		return vocab.Medium{Kind: kind, Data: b}, nil
	}
	m, err := media.FromURL(field, kind, []byte(text))
	if err != nil {
		return vocab.Medium{}, err
	}
	return vocab.MediumOf(&m)
}

// fits returns SGLang's error for a request that is too long; clients match its text.
func (f *Server) fits(prompt, limit int) error {
	room := f.run.Options().ContextLength
	switch {
	case prompt >= room:
		return infer.Errorf(infer.CodeContext, "The input (%d tokens) is longer than the model's context length (%d tokens).", prompt, room)
	case prompt+limit > room:
		return infer.Errorf(infer.CodeContext, "Requested token count exceeds the model's maximum context length: %d of the input and %d of the output are more than %d.", prompt, limit, room)
	}
	return nil
}

// generatePrompts returns the prompts of a request, and whether they came as a
// list.
func (f *Server) generatePrompts(req *generateRequest) (prompts [][]uint32, batch bool, err error) {
	text, ids := fields.Given(req.Text), fields.Given(req.InputIDs)
	switch {
	case text == ids:
		return nil, false, infer.Invalid("text", "give either text or input_ids")
	case ids:
		var one []uint32
		if json.Unmarshal(req.InputIDs, &one) == nil {
			return [][]uint32{one}, false, nil
		}
		if err := json.Unmarshal(req.InputIDs, &prompts); err != nil {
			return nil, false, infer.Invalid("input_ids", "input_ids must be a list of token ids or a list of such lists: %v", err)
		}
		return prompts, true, nil
	case f.flags.SkipTokenizer:
		return nil, false, infer.Invalid("text", "this engine has no tokenizer (--skip-tokenizer-init); send input_ids")
	}
	if batch = req.Text.Kind() == '['; !batch && req.Text.Kind() != '"' {
		return nil, false, infer.Invalid("text", "text must be a string or a list of strings")
	}
	if batch {
		var texts []string
		if err := json.Unmarshal(req.Text, &texts); err != nil {
			return nil, false, infer.Invalid("text", "text must be a string or a list of strings: %v", err)
		}
		if len(texts) == 0 {
			return nil, false, infer.Invalid("text", "text is an empty list; send at least one string")
		}
	}
	prompts, err = f.vocab.Prompts("text", req.Text)
	return prompts, batch, err
}

// logprobItems reads what each item asks of log probabilities.
func (f *Server) logprobItems(req *generateRequest, base item, n int) ([]item, error) {
	want, err := fields.PerItem[bool]("return_logprob", req.ReturnLogprob, 't', n)
	if err != nil {
		return nil, err
	}
	start, err := fields.PerItem[int]("logprob_start_len", fields.OrElse(req.LogprobStartLen, "-1"), '0', n)
	if err != nil {
		return nil, err
	}
	top, err := fields.PerItem[int]("top_logprobs_num", req.TopLogprobsNum, '0', n)
	if err != nil {
		return nil, err
	}
	// A list of ids is for all items, a list of lists has one for each.
	var wanted [][]uint32
	if fields.Given(req.TokenIDsLogprob) {
		var all []uint32
		if json.Unmarshal(req.TokenIDsLogprob, &all) == nil {
			wanted = slices.Repeat([][]uint32{all}, n)
		} else if err := json.Unmarshal(req.TokenIDsLogprob, &wanted); err != nil || len(wanted) != n {
			return nil, infer.Invalid("token_ids_logprob", "token_ids_logprob must be a list of token ids, or a list of such lists, one for each of %d items", n)
		}
	}
	items := slices.Repeat([]item{base}, n)
	for i := range items {
		it := &items[i]
		it.logprob, it.start, it.top = want[i], start[i], top[i]
		if wanted != nil {
			it.wanted = wanted[i]
		}
		if it.top < 0 || it.top > vocab.MaxAlternatives {
			return nil, infer.Invalid("top_logprobs_num", "top_logprobs_num is %d; it must be from 0 to %d", it.top, vocab.MaxAlternatives)
		}
		if it.start < -1 {
			return nil, infer.Invalid("logprob_start_len", "logprob_start_len is %d; it must be -1, for the output alone, or a position of the prompt", it.start)
		}
	}
	return items, nil
}
