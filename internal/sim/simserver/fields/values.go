package fields

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

// ValueOr returns the value of a pointer, or otherwise if it is nil.
func ValueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// Given reports whether a raw field has a value other than null.
func Given(v jsontext.Value) bool {
	switch v.Kind() {
	case 0, 'n', 'f':
		return false
	}
	return true
}

// PerItem reads a field that is one value for all n items, or a list with one
// for each. kind is that of a single value.
func PerItem[T any](name string, v jsontext.Value, kind jsontext.Kind, n int, o ...json.Options) ([]T, error) {
	one := make([]T, n)
	k := v.Kind()
	if k == 'f' {
		k = 't'
	}
	switch k {
	case 0, 'n':
		return one, nil
	case kind:
		if err := json.Unmarshal(v, &one[0], o...); err != nil {
			return nil, infer.Invalid(name, "%s is not valid: %v", name, err)
		}
		for i := range one {
			one[i] = one[0]
		}
		return one, nil
	case '[':
		var list []T
		if err := json.Unmarshal(v, &list, o...); err != nil {
			return nil, infer.Invalid(name, "%s is not valid: %v", name, err)
		}
		if len(list) != n {
			return nil, infer.Invalid(name, "%s has %d items and the request %d", name, len(list), n)
		}
		return list, nil
	}
	return nil, infer.Invalid(name, "%s has the wrong type", name)
}

// OrElse returns a raw field, or otherwise where it has no value.
func OrElse(v jsontext.Value, otherwise string) jsontext.Value {
	if v.Kind() == 0 || v.Kind() == 'n' {
		return jsontext.Value(otherwise)
	}
	return v
}

// NotSimulated is the error of a field on which the engine cannot act.
func NotSimulated(field string) error {
	return infer.Invalid(field, "this simulated engine has no %s; leave it out", field)
}

// AsInvalid makes an error of the tokenizer the caller's, unless it has a code
// of its own.
func AsInvalid(param string, err error) error {
	if e := infer.AsError(err); e.Code != infer.CodeInternal {
		return e
	}
	return &infer.Error{Code: infer.CodeInvalid, Param: param, Message: param + ": " + err.Error(), Cause: err}
}

// IsNull reports whether a raw field is missing or null.
func IsNull(v jsontext.Value) bool { return len(v) == 0 || v.Kind() == 'n' }

// AskInvalid makes an error of package content the caller's.
func AskInvalid(err error) error {
	var ask *content.AskError
	var schema *content.SchemaError
	switch {
	case errors.As(err, &ask):
		return &infer.Error{Code: infer.CodeInvalid, Param: ask.Param, Message: ask.Reason, Cause: err}
	case errors.As(err, &schema):
		return &infer.Error{Code: infer.CodeInvalid, Param: "schema", Message: "schema: " + err.Error(), Cause: err}
	}
	return &infer.Error{Code: infer.CodeInvalid, Message: strings.TrimPrefix(err.Error(), "content: "), Cause: err}
}

// MaxChoices bounds the choices of one request.
const MaxChoices = 128

// Stops reads stop strings: one or a list.
func Stops(v jsontext.Value) ([]string, error) {
	var list []string
	switch v.Kind() {
	case 0, 'n':
		return nil, nil
	case '"':
		list = []string{""}
		if err := json.Unmarshal(v, &list[0]); err != nil {
			return nil, infer.Invalid("stop", "stop is not valid: %v", err)
		}
	default:
		if err := json.Unmarshal(v, &list); err != nil {
			return nil, infer.Invalid("stop", "stop must be a string or a list of strings: %v", err)
		}
	}
	for i, s := range list {
		if s == "" {
			return nil, infer.Invalid("stop", "stop[%d] is empty; leave it out", i)
		}
	}
	return list, nil
}
