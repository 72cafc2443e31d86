package dialect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir/internal/infer"
)

// Bounds of the lists in a request.
const (
	MaxStops   = 16
	MaxStopIDs = 1024
	MaxBiases  = 1024
	// MaxStop bounds a stop string in bytes. Every choice searches its text for the
	// string, and holds back what may be its beginning.
	MaxStop = 1024
)

// Parameter reads the sampling parameter at path into s.
type Parameter func(s *infer.Sampling, path string, raw []byte) error

// The sampling parameters, with the bounds of most dialects.
var (
	Temperature       = number(0, 2, false, func(s *infer.Sampling) **float64 { return &s.Temperature })
	TopP              = number(0, 1, true, func(s *infer.Sampling) **float64 { return &s.TopP })
	MinP              = number(0, 1, false, func(s *infer.Sampling) **float64 { return &s.MinP })
	PresencePenalty   = number(-2, 2, false, func(s *infer.Sampling) **float64 { return &s.PresencePenalty })
	FrequencyPenalty  = number(-2, 2, false, func(s *infer.Sampling) **float64 { return &s.FrequencyPenalty })
	RepetitionPenalty = number(0, 2, true, func(s *infer.Sampling) **float64 { return &s.RepetitionPenalty })
)

func number(low, high float64, openLow bool, of func(*infer.Sampling) **float64) Parameter {
	return func(s *infer.Sampling, path string, raw []byte) error {
		v, err := FloatOf(path, raw, low, high, openLow)
		*of(s) = &v
		return err
	}
}

// TopK takes -1 and 0 for no limit.
func TopK(s *infer.Sampling, path string, raw []byte) error {
	n, err := IntOf(path, raw, -1, math.MaxInt32)
	k := int(n)
	if k == 0 {
		k = -1 // engines disagree on 0; all read -1 as no limit
	}
	s.TopK = &k
	return err
}

// Seed takes any 64-bit integer.
func Seed(s *infer.Sampling, path string, raw []byte) error {
	n, err := IntOf(path, raw, math.MinInt64, math.MaxInt64)
	s.Seed = &n
	return err
}

// PriorityOf reads a priority, any 64-bit integer.
func PriorityOf(field string, raw []byte) (*int64, error) {
	n, err := IntOf(field, raw, math.MinInt64, math.MaxInt64)
	return &n, err
}

// Biases takes an object of token ids to numbers.
func Biases(s *infer.Sampling, path string, raw []byte) (err error) {
	s.LogitBias, err = biasesOf(path, raw)
	return err
}

// StopsOf reads stop strings: one string, or an array of at most most.
func StopsOf(field string, raw []byte, most int) (stops []string, err error) {
	add := func(path string, raw []byte) error {
		s, err := StringOf(path, raw)
		switch {
		case err != nil:
			return err
		case s == "":
			return infer.Invalid(path, "%s is empty; every text would end at once", path)
		case len(s) > MaxStop:
			return infer.Invalid(path, "%s has %d bytes; a stop string may have %d; send a shorter one", path, len(s), MaxStop)
		}
		stops = append(stops, s)
		return nil
	}
	switch KindOf(raw) {
	case '"':
		return stops, add(field, raw)
	case '[':
		err = EachItem(raw, func(i int, item []byte) error {
			if i == most {
				return infer.Invalid(field, "%s may hold at most %d strings", field, most)
			}
			return add(fmt.Sprintf("%s[%d]", field, i), item)
		})
		return stops, err
	}
	return nil, WrongType(field, "a string or an array of strings", raw)
}

// StopIDsOf reads the ids that end an answer.
func StopIDsOf(field string, raw []byte) ([]uint32, error) {
	if KindOf(raw) != '[' {
		return nil, WrongType(field, "an array of token ids", raw)
	}
	ids, err := IDsOf(field, raw)
	if err == nil && len(ids) > MaxStopIDs {
		return nil, infer.Invalid(field, "%s may hold at most %d ids, found %d", field, MaxStopIDs, len(ids))
	}
	return ids, err
}

// biasesOf reads an object of token ids to numbers, and gives them in the order
// of ids.
func biasesOf(field string, raw []byte) ([]infer.Bias, error) {
	if KindOf(raw) != '{' {
		return nil, WrongType(field, "an object of token ids to numbers", raw)
	}
	if err := CheckStrict(field, raw); err != nil {
		return nil, err
	}
	var list []infer.Bias
	err := EachMember(raw, func(name string, value []byte) error {
		path := field + "." + Clip(name, 32)
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return infer.Invalid(path, "%s: %q is not a token id", path, Clip(name, 32))
		}
		if len(list) == MaxBiases {
			return infer.Invalid(field, "%s may name at most %d ids", field, MaxBiases)
		}
		v, err := FloatOf(path, value, -100, 100, false)
		list = append(list, infer.Bias{ID: uint32(id), Value: v})
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b infer.Bias) int { return cmp.Compare(a.ID, b.ID) })
	for i := 1; i < len(list); i++ {
		if list[i].ID == list[i-1].ID {
			return nil, infer.Invalid(field, "%s names the id %d twice", field, list[i].ID)
		}
	}
	return list, nil
}

// SchemaOf reads a JSON schema: an object, or a string that holds one.
func SchemaOf(field string, raw []byte) (string, error) {
	text := string(raw)
	switch KindOf(raw) {
	case '{':
	case '"':
		var err error
		if text, err = StringOf(field, raw); err != nil {
			return "", err
		}
		if KindOf([]byte(text)) != '{' || CheckStrict(field, []byte(text)) != nil {
			return "", infer.Invalid(field, "%s is a string that holds no JSON object; send the schema itself", field)
		}
	default:
		return "", WrongType(field, "a JSON schema", raw)
	}
	return text, nil
}

// EffortOf reads how much the model should reason.
func EffortOf(field string, raw []byte) (string, error) {
	word, err := StringOf(field, raw)
	if err == nil && !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}, word) {
		err = infer.Invalid(field, "%s is %q; it must be none, minimal, low, medium, high, xhigh or max", field, Clip(word, 32))
	}
	return word, err
}
