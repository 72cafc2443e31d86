package fields

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Salt are those by which a request finds in the prefix cache only what others of the
// same salt left there.
type Salt struct {
	CacheSalt jsontext.Value `json:"cache_salt"`
	ExtraKey  jsontext.Value `json:"extra_key"` // SGLang's
}

// maxSalt is how many characters vLLM takes.
const maxSalt = 128

// VLLM returns the salt, by the rules of vLLM 0.32.
func (s *Salt) VLLM() (string, error) {
	switch s.CacheSalt.Kind() {
	case 0, 'n':
		return "", nil
	case '"':
	default:
		return "", infer.Invalid("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	salt, err := PerItem[string]("cache_salt", s.CacheSalt, '"', 1)
	switch {
	case err != nil:
		return "", err
	case salt[0] == "":
		return "", infer.Invalid("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	case len([]rune(salt[0])) > maxSalt || strings.ContainsAny(salt[0], "@/\\\x00"):
		return "", infer.Invalid("cache_salt", `Parameter 'cache_salt' must be at most %d characters and must not contain '@', '/', '\\', or NUL.`, maxSalt)
	}
	return salt[0], nil
}

// SGLang returns the salt of each of n items, by the rules of SGLang 0.5.23: an empty one is
// none, and both fields together divide.
func (s *Salt) SGLang(n int) ([]string, error) {
	salts, err := PerItem[string]("cache_salt", s.CacheSalt, '"', n)
	if err != nil {
		return nil, err
	}
	keys, err := PerItem[string]("extra_key", s.ExtraKey, '"', n)
	if err != nil {
		return nil, err
	}
	for i := range salts {
		if keys[i] != "" && keys[i] != salts[i] {
			salts[i] += "\x00" + keys[i]
		}
	}
	return salts, nil
}
