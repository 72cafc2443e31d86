package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"weir/internal/dialect"
	"weir/internal/dialect/media"
	"weir/internal/infer"
)

// Path is the endpoint's.
const Path = "/generate"

// defaultMaxTokens is SGLang's bound where a caller gives none, and toContext
// stands for null, which is what the context leaves.
const (
	defaultMaxTokens = 128
	toContext        = -1
)

// Bounds of a request.
const (
	maxRID        = 256
	maxChoices    = 128     // answers to a request
	maxTop        = 20      // alternatives to an id
	maxSamplings  = 1 << 20 // ids between two events
	greatestFloat = math.MaxFloat32
)

// endpoint is the API's one path.
type endpoint struct{ Options }

// String implements dialect.Endpoint.
func (*endpoint) String() string { return Path }

// Traits implements dialect.Endpoint: what a relay engine answers at this path has no
// judge here.
func (*endpoint) Traits() dialect.Traits { return dialect.Traits{TokensOnly: true} }

// ParseHead implements dialect.Endpoint. A body need not name its model.
func (*endpoint) ParseHead(body []byte) (*dialect.Head, error) {
	return dialect.ParseHead(body, fieldNames, func(h *dialect.Head, name string, value []byte) (err error) {
		if dialect.KindOf(value) == 'n' {
			return nil
		}
		switch name {
		case "stream":
			h.Stream, err = dialect.BoolOf(name, value)
		case "rid":
			h.RequestID, err = ridOf(value)
		}
		return err
	})
}

// ridOf reads the caller's own id.
func ridOf(raw []byte) (string, error) {
	raw, path, err := only("rid", raw)
	if err != nil || dialect.KindOf(raw) == 'n' {
		return "", err
	}
	rid, err := dialect.StringOf(path, raw)
	switch {
	case err != nil:
		return "", err
	case rid == "":
		return "", infer.Invalid(path, "%s is empty; leave it out", path)
	case len(rid) > maxRID:
		return "", infer.Invalid(path, "%s has %d bytes; it may have %d", path, len(rid), maxRID)
	}
	return rid, nil
}

// only returns the item of an array that has one, and anything else as it is:
// a field of a batch has an item for each prompt.
func only(path string, raw []byte) (item []byte, itemPath string, err error) {
	if dialect.KindOf(raw) != '[' {
		return raw, path, nil
	}
	n := 0
	err = dialect.EachItem(raw, func(_ int, v []byte) error {
		if n++; n == 1 {
			item = v
		}
		return nil
	})
	if err == nil && n != 1 {
		err = batch(path, n)
	}
	return item, path + "[0]", err
}

// batch refuses a list of what is for all prompts.
func batch(path string, n int) error {
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s has %d items; send one, which is for all prompts, or a request for each", path, n)}
}

// decoding is a request under way.
type decoding struct {
	dialect.Decoding
	shape
	hasText    bool
	hasIDs     bool
	maxTokens  int
	logprobs   bool
	asked      int // alternatives to each id
	mediaField string
	start      int // of log probabilities in the prompt
}

var spokenNames = dialect.FieldNames{
	Prompt: "text", MaxTokens: samplingPath + "max_new_tokens", MinTokens: samplingPath + "min_new_tokens",
	StopIDs: samplingPath + "stop_token_ids", LogitBias: samplingPath + "logit_bias", Seed: samplingPath + "sampling_seed",
	Choices: samplingPath + "n", Logprobs: "top_logprobs_num", LogprobsFrom: "logprob_start_len",
}

var idNames = namesOfIDs(spokenNames)

func namesOfIDs(names dialect.FieldNames) dialect.FieldNames {
	names.Prompt = "input_ids"
	return names
}

// Request implements dialect.Endpoint.
func (e *endpoint) Request(h *dialect.Head, kind string, carries infer.Carries) (*dialect.Request, error) {
	if err := h.Unambiguous(); err != nil {
		return nil, err
	}
	d := &decoding{Decoding: dialect.NewDecoding(e, h, kind, carries, &spokenNames), maxTokens: defaultMaxTokens, start: -1}
	d.stream, d.rid, d.incremental = h.Stream, h.RequestID, e.Incremental
	for _, at := range h.Fields {
		raw := h.Body[at.Start:at.End]
		err := d.field(fields, fieldNames, "", at.Name, raw)
		if err == nil && at.Name == "sampling_params" && dialect.KindOf(raw) != 'n' {
			err = d.sampling(at.Name, raw)
		}
		if err != nil {
			return nil, err
		}
	}
	return d.finish()
}

// field decodes one field of a list; its path is prefix and name.
func (d *decoding) field(list []field, names dialect.Names, prefix, name string, raw []byte) error {
	known, ok := names[name]
	if !ok {
		return d.unknown(prefix, name)
	}
	f := &list[known.Index]
	if read, err := d.Judge(&f.Field, prefix+name, raw); !read || dialect.KindOf(raw) == 'n' && !f.takesNull {
		return err
	}
	return f.take(d, prefix+name, raw)
}

// unknown refuses a field by a name that is not in the tables.
func (d *decoding) unknown(prefix, name string) error {
	path := prefix + dialect.Clip(name, 64)
	if d.Passes(path) {
		return nil
	}
	e := &infer.Error{Code: infer.CodeUnsupported, Param: path}
	_, top := fieldNames[name]
	_, param := samplingNames[name]
	names := fieldNames
	if prefix != "" {
		names = samplingNames
	}
	near := dialect.Nearest(name, names)
	switch {
	case prefix == "" && param:
		e.Message = fmt.Sprintf("%s belongs into sampling_params: send %s%s", path, samplingPath, name)
	case prefix != "" && top:
		e.Message = fmt.Sprintf("%s is a field of the request, not of sampling_params: send %s beside it", path, name)
	case near != "":
		e.Message = fmt.Sprintf("there is no field %q that %s can carry; did you mean %s?", path, Path, prefix+near)
	default:
		e.Message = fmt.Sprintf("there is no field %q that %s can carry; leave it out", path, Path)
	}
	return e
}

// finish checks what fields say together.
func (d *decoding) finish() (*dialect.Request, error) {
	switch {
	case d.hasText && d.hasIDs:
		return nil, infer.Invalid("input_ids", "text and input_ids are both given; give one of them")
	case !d.hasText && !d.hasIDs:
		return nil, infer.Invalid("text", "text or input_ids is required: send a prompt")
	}
	if d.hasIDs {
		d.Fields = &idNames
	}
	if d.maxTokens != toContext && d.MinTokens > d.maxTokens {
		return nil, infer.Invalid(d.Fields.MinTokens, "%s is %d, above the limit of %d tokens", d.Fields.MinTokens, d.MinTokens, d.maxTokens)
	}
	switch n, prompts := max(1, d.N), 1+len(d.MorePrompts); {
	case n*prompts > maxChoices:
		return nil, infer.Invalid(samplingPath+"n", "%sn is %d for each of %d prompts, %d answers; a request may have at most %d", samplingPath, n, prompts, n*prompts, maxChoices)
	case len(d.Media) > 0 && prompts > 1:
		return nil, &infer.Error{Code: infer.CodeUnsupported, Param: d.mediaField,
			Message: fmt.Sprintf("%s with %d prompts: send a request for each prompt", d.mediaField, prompts)}
	case d.logprobs && d.start >= 0 && len(d.Media) > 0:
		return nil, &infer.Error{Code: infer.CodeUnsupported, Param: "logprob_start_len",
			Message: fmt.Sprintf("logprob_start_len is %d with %s: the log probabilities of a prompt with media are not told; leave it out or send -1", d.start, d.mediaField)}
	case d.logprobs:
		d.Logprobs, d.top, d.scored = &d.asked, d.asked, true
		if d.start < 0 {
			break
		}
		if d.LogprobsFrom = &d.start; d.Carries&infer.CarriesPromptLogprobs == 0 {
			return nil, d.Lacking(infer.CarriesPromptLogprobs, "logprob_start_len", "-1")
		}
	}
	d.batch = d.batch || d.N > 1
	// Nothing to generate is one id that nobody is told.
	d.hidden = d.maxTokens == 0
	if d.maxTokens != toContext {
		d.MaxTokens = max(d.maxTokens, 1)
	}
	d.Tokens, d.NoText = true, d.noText
	d.Repeats = !d.incremental
	s := d.shape
	d.Encoder = func(o dialect.AnswerOptions) dialect.Encoder { return newAnswer(s, o) }
	return &d.Request, nil
}

// nothing takes a field that ParseHead has read.
func nothing(*decoding, string, []byte) error { return nil }

func takeText(d *decoding, path string, raw []byte) (err error) {
	d.hasText = true
	if dialect.KindOf(raw) != '[' {
		d.Prompt, err = textOf(path, raw)
		return err
	}
	return d.batchOf(path, raw, func(path string, raw []byte) (p dialect.Prompt, err error) {
		p.Text, err = textOf(path, raw)
		return p, err
	})
}

func textOf(path string, raw []byte) (string, error) {
	text, err := dialect.StringOf(path, raw)
	if err == nil && text == "" {
		err = emptyPrompt(path)
	}
	return text, err
}

// batchOf reads an array of prompts.
func (d *decoding) batchOf(path string, raw []byte, read func(path string, raw []byte) (dialect.Prompt, error)) error {
	n := 0
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		if i == maxChoices {
			return infer.Invalid(path, "%s may hold at most %d prompts", path, maxChoices)
		}
		p, err := read(fmt.Sprintf("%s[%d]", path, i), item)
		if n++; n == 1 {
			d.Prompt, d.PromptIDs = p.Text, p.IDs
		} else {
			d.MorePrompts = append(d.MorePrompts, p)
		}
		return err
	})
	if d.batch = true; err == nil && n == 0 {
		return emptyPrompt(path)
	}
	return err
}

func emptyPrompt(path string) error {
	return infer.Invalid(path, "%s is empty; there must be at least one token to go on from", path)
}

// errIDs stops the walk over an array of ids, which is read faster.
var errIDs = errors.New("an array of ids")

func takeInputIDs(d *decoding, path string, raw []byte) (err error) {
	d.hasIDs = true
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType(path, "an array of token ids", raw)
	}
	first := true
	err = d.batchOf(path, raw, func(path string, raw []byte) (p dialect.Prompt, err error) {
		if dialect.KindOf(raw) != '[' {
			if !first {
				return p, dialect.WrongType(path, "an array of token ids", raw)
			}
			return p, errIDs
		}
		first = false
		p.IDs, err = idsOf(path, raw)
		return p, err
	})
	if errors.Is(err, errIDs) {
		d.batch = false
		d.PromptIDs, err = idsOf(path, raw)
	}
	return err
}

func idsOf(path string, raw []byte) ([]uint32, error) {
	ids, err := dialect.IDsOf(path, raw)
	if err == nil && len(ids) == 0 {
		err = emptyPrompt(path)
	}
	return ids, err
}

// sampling decodes sampling_params.
func (d *decoding) sampling(path string, raw []byte) (err error) {
	if raw, path, err = only(path, raw); err != nil {
		return err
	}
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	if err := dialect.CheckStrict(path, raw); err != nil {
		return err
	}
	return dialect.EachMember(raw, func(name string, value []byte) error {
		return d.field(sampling, samplingNames, samplingPath, name, value)
	})
}

// takeMedia takes one of a kind of media or several. In a batch, which has one
// prompt here, an array of them may be the only item of another.
func takeMedia(kind infer.MediaKind) func(*decoding, string, []byte) error {
	return func(d *decoding, path string, raw []byte) error {
		one := func(path string, raw []byte) error {
			if dialect.KindOf(raw) != '"' {
				return dialect.WrongType(path, "a string", raw)
			}
			read := media.FromURL
			if text := dialect.Spelled(raw); kind == infer.MediaImage && !bytes.Contains(text[:min(len(text), len("https:"))], []byte{':'}) {
				read = media.FromBase64
			}
			m, err := read(path, kind, dialect.Spelled(raw))
			if err == nil {
				d.Media, d.mediaField = append(d.Media, m), path
			}
			return err
		}
		if dialect.KindOf(raw) != '[' {
			return one(path, raw)
		}
		if inner, innerPath, err := only(path, raw); err == nil && dialect.KindOf(inner) == '[' {
			raw, path = inner, innerPath
		}
		return dialect.EachItem(raw, func(i int, item []byte) error {
			return one(fmt.Sprintf("%s[%d]", path, i), item)
		})
	}
}

func takeN(d *decoding, path string, raw []byte) error {
	n, err := dialect.IntOf(path, raw, 1, maxChoices)
	d.N = int(n)
	return err
}

func takeLogprob(d *decoding, path string, raw []byte) (err error) {
	if raw, path, err = only(path, raw); err == nil {
		d.logprobs, err = dialect.BoolOf(path, raw)
	}
	return err
}

func takeTopLogprobs(d *decoding, path string, raw []byte) error {
	raw, path, err := only(path, raw)
	if err != nil {
		return err
	}
	n, err := dialect.IntOf(path, raw, 0, maxTop)
	d.asked = int(n)
	return err
}

func takeTextInLogprobs(d *decoding, path string, raw []byte) (err error) {
	d.scoredText, err = dialect.BoolOf(path, raw)
	return err
}

func takeLogprobStart(d *decoding, path string, raw []byte) (err error) {
	if raw, path, err = only(path, raw); err == nil {
		var n int64
		n, err = dialect.IntOf(path, raw, -1, math.MaxInt32)
		d.start = int(n)
	}
	return err
}

func takePromptIDs(d *decoding, path string, raw []byte) (err error) {
	d.promptIDs, err = dialect.BoolOf(path, raw)
	return err
}

func takeIncremental(d *decoding, path string, raw []byte) (err error) {
	d.incremental, err = dialect.BoolOf(path, raw)
	return err
}

func takeNoText(d *decoding, path string, raw []byte) (err error) {
	d.noText, err = dialect.BoolOf(path, raw)
	return err
}

func takeMaxTokens(d *decoding, path string, raw []byte) error {
	if dialect.KindOf(raw) == 'n' {
		d.maxTokens = toContext
		return nil
	}
	n, err := dialect.IntOf(path, raw, 0, math.MaxInt32)
	d.maxTokens = int(n)
	return err
}

func takeMinTokens(d *decoding, path string, raw []byte) error {
	n, err := dialect.IntOf(path, raw, 0, math.MaxInt32)
	d.MinTokens = int(n)
	return err
}

func takePriority(d *decoding, path string, raw []byte) (err error) {
	d.Priority, err = dialect.PriorityOf(path, raw)
	return err
}

// parameter takes a sampling parameter.
func parameter(take dialect.Parameter) func(*decoding, string, []byte) error {
	return func(d *decoding, path string, raw []byte) error { return take(&d.Sampling, path, raw) }
}

func takeTemperature(d *decoding, path string, raw []byte) error {
	v, err := dialect.FloatOf(path, raw, 0, greatestFloat, false)
	d.Sampling.Temperature = &v
	return err
}

func takeTopK(d *decoding, path string, raw []byte) error {
	n, err := dialect.IntOf(path, raw, -1, math.MaxInt32)
	if err == nil && n == 0 {
		return infer.Invalid(path, "%s is 0; it must be -1, for no limit, or at least 1", path)
	}
	k := int(n)
	d.Sampling.TopK = &k
	return err
}

func takeStop(d *decoding, path string, raw []byte) (err error) {
	d.Stop, err = dialect.StopsOf(path, raw, dialect.MaxStops)
	return err
}

func takeStopIDs(d *decoding, path string, raw []byte) (err error) {
	d.StopIDs, err = dialect.StopIDsOf(path, raw)
	return err
}

func takeNoStopTrim(d *decoding, path string, raw []byte) (err error) {
	d.IncludeStop, err = dialect.BoolOf(path, raw)
	return err
}

func takeIgnoreEOS(d *decoding, path string, raw []byte) (err error) {
	d.IgnoreEOS, err = dialect.BoolOf(path, raw)
	return err
}

func takeSkipSpecial(d *decoding, path string, raw []byte) error {
	skip, err := dialect.BoolOf(path, raw)
	d.ShowSpecial = !skip
	return err
}

func takeStreamInterval(d *decoding, path string, raw []byte) error {
	n, err := dialect.IntOf(path, raw, 1, maxSamplings)
	d.interval = int(n)
	return err
}

func takeJSONSchema(d *decoding, path string, raw []byte) error { return d.SchemaValue(path, raw) }

func takeRegex(d *decoding, path string, raw []byte) error {
	return d.TextGuide(path, infer.GuideRegex, raw)
}

func takeEBNF(d *decoding, path string, raw []byte) error {
	return d.TextGuide(path, infer.GuideGrammar, raw)
}

func takeStructuralTag(d *decoding, path string, raw []byte) error {
	return d.TextGuide(path, infer.GuideStructuralTag, raw)
}
