package api

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"weir/internal/infer"
)

// Bounds of what a request may list.
const (
	MaxStops   = 16
	MaxStopIDs = 1024
	MaxBiases  = 1024
)

// StopsOf reads stop strings: one, or an array of them.
func StopsOf(field string, raw []byte) (stops []string, err error) {
	add := func(path string, raw []byte) error {
		s, err := StringOf(path, raw)
		if err == nil && s == "" {
			err = infer.Invalid(path, "%s is empty; every text would end at once", path)
		}
		stops = append(stops, s)
		return err
	}
	switch KindOf(raw) {
	case '"':
		return stops, add(field, raw)
	case '[':
		err = EachItem(raw, func(i int, item []byte) error {
			if i == MaxStops {
				return infer.Invalid(field, "%s may hold at most %d strings", field, MaxStops)
			}
			return add(fmt.Sprintf("%s[%d]", field, i), item)
		})
		return stops, err
	}
	return nil, WrongType(field, "a string or an array of strings", raw)
}

// StopIDsOf reads ids that end an answer.
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

// BiasesOf reads an object of token ids to numbers, and gives them in the order
// of ids.
func BiasesOf(field string, raw []byte) ([]infer.Bias, error) {
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
			return infer.Invalid(path, "%s: %q is no token id", path, Clip(name, 32))
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

// SchemaOf reads a JSON schema, as itself or as its text.
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

// EffortOf reads how much a model is to reason.
func EffortOf(field string, raw []byte) (string, error) {
	word, err := StringOf(field, raw)
	if err == nil && !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}, word) {
		err = infer.Invalid(field, "%s is %q; it must be none, minimal, low, medium, high, xhigh or max", field, Clip(word, 32))
	}
	return word, err
}
