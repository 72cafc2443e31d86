package infer

import (
	"math/bits"
	"slices"
	"strings"
)

// Carries is a set of features that a request may ask for and that not every engine's
// wire can carry. A feature that a wire cannot carry is refused by name, never
// dropped.
type Carries uint64

// The members. Every wire carries everything else in a Request.
const (
	CarriesMinP Carries = 1 << iota
	CarriesPenalties
	CarriesRepetitionPenalty
	CarriesLogitBias
	CarriesJSONSchema
	CarriesRegex
	CarriesGrammar
	CarriesChoice
	CarriesStructuralTag
	CarriesLogprobs
	CarriesImage
	CarriesAudio
	CarriesVideo
	CarriesPriority
	CarriesMinTokens
	CarriesSeed
	CarriesPromptLogprobs
	endOfCarries
)

// CarriesAll has every member but the spellings.
const CarriesAll = endOfCarries - 1

// The spellings are fields of the APIs that engines serve themselves. One engine reads
// them and another silently ignores them. Only relayed requests need them: an engine
// that takes ids gets the meaning of a field, whatever its spelling.
const (
	SpelledGuided           Carries = endOfCarries << iota // guided_json, guided_regex, guided_choice, guided_grammar
	SpelledStructured                                      // structured_outputs
	SpelledSGLang                                          // SGLang's own: regex, ebnf, no_stop_trim, json_schema of completions
	SpelledStopRegex                                       // stop_regex
	SpelledVLLM                                            // vLLM's own: bad_words, allowed_token_ids, use_beam_search and more
	SpelledNowhere                                         // fields that neither reads: functions, best_of, json_schema of a chat and more
	SpelledSuffix                                          // suffix of completions
	SpelledCompletionFormat                                // response_format of completions
	SpelledSingleCall                                      // parallel_tool_calls: false
	SpelledMaxCompletion                                   // max_completion_tokens of a chat
	SpelledResponses                                       // sampling parameters of responses that OpenAI does not have
	SpelledTextFormat                                      // text.format of responses
	SpelledOutputFormat                                    // output_config.format of messages
	endOfSpelled
)

// Undivided is needed by a request that cannot be served in two halves. It goes to an
// engine that serves it whole. No wire's set has it, because it depends on the roles of
// engines.
const Undivided = endOfSpelled

// AnotherForm is needed by a request for engines that take only a form that the request does
// not have. No engine carries it. A request has one or both of two forms: ids, and the
// caller's own bytes.
const AnotherForm = endOfSpelled << 1

// CarriesAnything has every member and every spelling. It is the set of a relayed engine
// of unknown kind.
const CarriesAnything = endOfSpelled - 1

// CarriesUsual is what an engine carries unless it is known not to. The other members
// are carried only by engines that are known to carry them.
const CarriesUsual = CarriesMinTokens | CarriesSeed

// CarriesGuides has the member of every GuideKind.
const CarriesGuides = CarriesJSONSchema | CarriesRegex | CarriesGrammar | CarriesChoice | CarriesStructuralTag

// Lack is the reason why an engine lacks features that its wire can carry.
type Lack struct {
	What Carries
	// Why is a text for the caller and the operator. Its subject is the engine: "runs
	// with --grammar-backend none".
	Why string
}

// Without returns a set without the features that are lacking.
func (c Carries) Without(lacks []Lack) Carries {
	for _, l := range lacks {
		c &^= l.What
	}
	return c
}

var carriesNames = [...]string{
	"min_p", "penalties", "repetition_penalty", "logit_bias", "json_schema", "regex", "grammar", "choice", "structural_tag",
	"logprobs", "image", "audio", "video", "priority", "min_tokens", "seed", "prompt_logprobs",
}

// spelledNames follow on carriesNames.
var spelledNames = [...]string{
	"guided_json and its like", "structured_outputs", "SGLang's own fields", "stop_regex", "vLLM's own fields", "unusual fields", "suffix",
	"response_format of completions", "parallel_tool_calls", "max_completion_tokens", "sampling fields of responses", "text.format", "output_config.format",
}

// Words returns the names of the members.
func (c Carries) Words() []string {
	var words []string
	for ; c != 0; c &= c - 1 {
		i := bits.TrailingZeros64(uint64(c))
		switch {
		case i < len(carriesNames):
			words = append(words, carriesNames[i])
		case 1<<i == Undivided:
			words = append(words, "requests that cannot be divided between a prefill and a decode engine")
		case 1<<i == AnotherForm:
			words = append(words, "requests in another form")
		default:
			words = append(words, spelledNames[i-len(carriesNames)])
		}
	}
	return words
}

// String lists the members.
func (c Carries) String() string { return strings.Join(c.Words(), ", ") }

// ParseCarries is the inverse of Words. It skips unknown words, because no request
// can ask for what they stand for.
func ParseCarries(words []string) (c Carries) {
	for _, w := range words {
		if i := slices.Index(carriesNames[:], w); i >= 0 {
			c |= 1 << i
		}
	}
	return c
}

// GuideKind is the language of a Guide.
type GuideKind uint8

// The kinds.
const (
	GuideJSONSchema    GuideKind = iota // a JSON schema
	GuideRegex                          // a regular expression
	GuideGrammar                        // a context-free grammar, in EBNF or GBNF
	GuideChoice                         // one of Choices
	GuideStructuralTag                  // a JSON object that says where in the text a schema holds
)

// Needs returns what a wire must carry for a guide of the kind.
func (k GuideKind) Needs() Carries { return CarriesJSONSchema << k }

// Guide is what the output must match.
type Guide struct {
	Kind    GuideKind
	Text    string
	Choices []string // for GuideChoice
	// Reasoning states whether the answer may begin with reasoning, given the prompt
	// and the model.
	Reasoning Reasoning
	// Whole is set if all of the answer must match, because no reasoning is separated
	// from it. This holds for a forced call, for a completion, and if it is not known how
	// the model reasons.
	Whole bool
}

// Before states what may precede the output that must match.
func (g *Guide) Before() Reasoning {
	if g.Whole {
		return NoReasoning
	}
	return g.Reasoning
}

// Reasoning states whether an answer begins with reasoning.
type Reasoning uint8

// The values of Reasoning.
const (
	NoReasoning   Reasoning = iota // it does not, or nothing is known
	OwnReasoning                   // the model begins with reasoning unless it must write something else
	OpenReasoning                  // the prompt has opened the reasoning
)

// Size returns the guide's length in bytes.
func (g *Guide) Size() int {
	n := len(g.Text)
	for _, c := range g.Choices {
		n += len(c)
	}
	return n
}

// Bias is added to the logit of an id before one is drawn.
type Bias struct {
	ID    uint32
	Value float64
}

// Needs returns the features of the request that not every wire can carry.
func (r *Request) Needs() (needs Carries) {
	s := &r.Sampling
	if s.MinP != nil {
		needs |= CarriesMinP
	}
	if s.PresencePenalty != nil || s.FrequencyPenalty != nil {
		needs |= CarriesPenalties
	}
	if s.RepetitionPenalty != nil {
		needs |= CarriesRepetitionPenalty
	}
	if len(s.LogitBias) > 0 {
		needs |= CarriesLogitBias
	}
	if r.Guide != nil {
		needs |= r.Guide.Kind.Needs()
	}
	if r.Logprobs != nil {
		needs |= CarriesLogprobs
	}
	if r.LogprobsFrom != nil {
		needs |= CarriesPromptLogprobs
	}
	for i := range r.Media {
		needs |= r.Media[i].Kind.Carries()
	}
	if r.Priority != nil {
		needs |= CarriesPriority
	}
	if r.MinTokens > 0 {
		needs |= CarriesMinTokens
	}
	if s.Seed != nil && s.Draws() {
		needs |= CarriesSeed
	}
	return needs
}

// Draws reports whether ids are drawn at random. Otherwise the most probable id is taken each
// time, and a seed has no effect.
func (s *Sampling) Draws() bool {
	return (s.Temperature == nil || *s.Temperature != 0) && (s.TopK == nil || *s.TopK != 1)
}

// Penalizes reports whether the output so far changes the probabilities of ids.
func (s *Sampling) Penalizes() bool {
	return s.PresencePenalty != nil && *s.PresencePenalty != 0 || s.FrequencyPenalty != nil && *s.FrequencyPenalty != 0 ||
		s.RepetitionPenalty != nil && *s.RepetitionPenalty != 1
}

// Lacks returns an error if the request needs more than carries. The gateway chooses
// an engine that carries enough; the check covers an engine that has changed since.
func (r *Request) Lacks(carries Carries) *Error {
	if missing := r.Needs() &^ carries; missing != 0 {
		err := Errorf(CodeUnsupported, "the engine cannot carry %s", missing)
		err.Lacks, err.Retryable = missing, true // another may
		return err
	}
	return nil
}
