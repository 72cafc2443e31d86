package fields

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// RIDs returns the request ids of the outputs of a number of prompts with n outputs each.
// As in SGLang, the caller's ids are not used if n is more than 1, and in a batch a single
// string is the prefix of all ids.
func RIDs(v jsontext.Value, batch bool, prompts, n int) ([]string, error) {
	var list []string
	switch v.Kind() {
	case 0, 'n':
	case '"':
		var one string
		if err := json.Unmarshal(v, &one); err != nil {
			return nil, infer.Invalid("rid", "rid is not valid: %v", err)
		}
		if !batch {
			return []string{one}, nil
		}
		for i := range prompts {
			list = append(list, fmt.Sprintf("%s_%d", one, i))
		}
	default:
		if err := json.Unmarshal(v, &list); err != nil {
			return nil, infer.Invalid("rid", "rid must be a string or a list of strings: %v", err)
		}
		if len(list) != prompts {
			return nil, infer.Invalid("rid", "rid has %d ids and the request %d prompts", len(list), prompts)
		}
	}
	if n > 1 || list == nil {
		list = nil
		for range prompts * n {
			list = append(list, newRID())
		}
	}
	return list, nil
}

// newRID returns 32 hexadecimal digits.
func newRID() string {
	var id [16]byte
	rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}
