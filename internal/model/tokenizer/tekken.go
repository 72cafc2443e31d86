package tokenizer

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"slices"
)

// fileTekken is the vocabulary of Mistral's own library, which engines load in
// its place where a model has no tokenizer.json.
const fileTekken = "tekken.json"

// tekkenFile is what ids depend on in a tekken.json.
type tekkenFile struct {
	Config struct {
		Pattern string `json:"pattern"`
		Size    int    `json:"default_vocab_size"`
		Special int    `json:"default_num_special_tokens"`
		Version string `json:"version"`
	} `json:"config"`
	// Vocab may have more tokens than are used.
	Vocab []struct {
		Rank  uint32 `json:"rank"`
		Bytes string `json:"token_bytes"`
	} `json:"vocab"`
	SpecialTokens []struct {
		Rank uint32 `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

// oldTekkenSpecial returns the special tokens of the files up to version 7, which do
// not list them.
func oldTekkenSpecial() []string {
	return []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
		"[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}
}

// loadTekken loads the tekken.json of a folder, and gives its bytes; nil if there
// is none. Special tokens have the first ids and the ranks those that follow. Mistral's
// library never finds special tokens in text, it is handed messages; here they are
// found, as those of the same models' tokenizer.json are, because a chat template
// writes them.
func loadTekken(folder fs.FS) (*Tokenizer, []byte, error) {
	data, err := readFile(folder, fileTekken)
	if err != nil || data == nil {
		return nil, nil, err
	}
	n := node{file: fileTekken, value: data}
	var f tekkenFile
	if err := n.scan(&f); err != nil {
		return nil, nil, err
	}
	special, err := f.special(n)
	if err != nil {
		return nil, nil, err
	}
	ranks, err := f.ranks(n)
	if err != nil {
		return nil, nil, err
	}
	t, err := buildRanks(fileTekken, ranks, f.Config.Pattern, false)
	if err != nil {
		return nil, nil, err
	}
	if err := t.addSpecial(fileTekken, special); err != nil {
		return nil, nil, err
	}
	if bos, ok := t.ids.get("<s>"); ok {
		t.prefix = []uint32{bos}
	}
	t.layOut()
	return t, data, nil
}

// special returns the special tokens, with fillers for those that have no name.
func (f *tekkenFile) special(n node) (map[uint32]string, error) {
	at := n.at("/config/default_num_special_tokens", nil)
	if f.Config.Special < 1 || f.Config.Special >= f.Config.Size {
		return nil, at.errorf("want a number from 1 to below default_vocab_size, %d, have %d", f.Config.Size, f.Config.Special)
	}
	var names []string
	if f.SpecialTokens == nil {
		if !slices.Contains([]string{"v1", "v2", "v3", "v7"}, f.Config.Version) {
			return nil, n.at("/special_tokens", nil).errorf("it is missing, and only files up to version v7 may leave it out; this one is %q", f.Config.Version)
		}
		names = oldTekkenSpecial()
	}
	for i, token := range f.SpecialTokens {
		if at := n.at(fmt.Sprintf("/special_tokens/%d", i), nil); int(token.Rank) != i {
			return nil, at.at("/rank", nil).errorf("want %d, its place in the list, have %d", i, token.Rank)
		} else if token.Text == "" {
			return nil, at.at("/token_str", nil).errorf("the token is empty")
		}
		names = append(names, token.Text)
	}
	if len(names) > f.Config.Special {
		return nil, at.errorf("%d is less than the %d special tokens there are", f.Config.Special, len(names))
	}
	for id := len(names); id < f.Config.Special; id++ {
		names = append(names, fmt.Sprintf("<SPECIAL_%d>", id))
	}
	return numbered(names, 0), nil
}

// ranks returns the tokens that are used, by their ids.
func (f *tekkenFile) ranks(n node) (map[string]uint32, error) {
	used := f.Config.Size - f.Config.Special
	if used > len(f.Vocab) || f.Config.Size > maxIDs {
		return nil, n.at("/config/default_vocab_size", nil).errorf("want at most the %d of vocab and %d special tokens, and below %d, have %d",
			len(f.Vocab), f.Config.Special, maxIDs, f.Config.Size)
	}
	out := make(map[string]uint32, used)
	for i, token := range f.Vocab[:used] {
		at := n.at(fmt.Sprintf("/vocab/%d", i), nil)
		text, err := base64.StdEncoding.DecodeString(token.Bytes)
		switch {
		case err != nil:
			return nil, at.at("/token_bytes", nil).errorf("%v", err)
		case len(text) == 0:
			return nil, at.at("/token_bytes", nil).errorf("the token is empty")
		case int(token.Rank) != i:
			return nil, at.at("/rank", nil).errorf("want %d, its place in the list, have %d", i, token.Rank)
		}
		if _, twice := out[string(text)]; twice {
			return nil, at.errorf("token %q stands here again", text)
		}
		out[string(text)] = uint32(f.Config.Special + i)
	}
	return out, nil
}
