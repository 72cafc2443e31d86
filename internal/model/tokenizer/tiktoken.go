package tokenizer

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The rank files of tiktoken that are known by name, and what Meta puts beside
// its own.
const (
	fileQwen   = "qwen.tiktoken"
	fileKimi   = "tiktoken.model"
	fileLlama  = "tokenizer.model"
	fileParams = "params.json"
)

// rankFile is a vocabulary in tiktoken's form: lines of a token in base64 and its rank,
// which is both its id and its priority in merging. The file has neither the split
// pattern nor the special tokens, which are in each model's own code. They must
// therefore be determined from other files of the folder.
type rankFile struct {
	name    string
	pattern string
	nfc     bool
	// special returns the special tokens, whose ids follow the ranks.
	special func(folder fs.FS, ranks uint32) (map[uint32]string, error)
}

// loadRanks loads the rank file of a folder that has no tokenizer.json. It
// gives the file's bytes with the tokenizer, or nil if there is none.
func loadRanks(folder fs.FS) (*Tokenizer, []byte, error) {
	for _, name := range []string{fileQwen, fileKimi, fileLlama} {
		data, err := readFile(folder, name)
		if err != nil {
			return nil, nil, err
		}
		if data == nil {
			continue
		}
		f, err := knownRanks(folder, name, data)
		if err != nil {
			return nil, nil, err
		}
		t, err := f.load(folder, data)
		return t, data, err
	}
	others, err := fs.Glob(folder, "*.tiktoken")
	if err == nil && len(others) > 0 {
		return nil, nil, fmt.Errorf("%s: weir does not know how this vocabulary splits text; it knows %s, %s and Llama-3's %s", others[0], fileQwen, fileKimi, fileLlama)
	}
	return nil, nil, err
}

// knownRanks decides by what lies beside a file how it is to be used.
func knownRanks(folder fs.FS, name string, data []byte) (rankFile, error) {
	class, err := tokenizerClass(folder)
	if err != nil {
		return rankFile{}, err
	}
	f := rankFile{name: name}
	switch {
	case name == fileQwen && class == "QWenTokenizer":
		f.pattern, f.nfc, f.special = patternQwen2, true, qwenSpecial
	case name == fileKimi && class == "TikTokenTokenizer":
		f.pattern, f.special = patternKimi, kimiSpecial
	case name == fileLlama:
		line, _, _ := bytes.Cut(data, []byte("\n"))
		if _, _, err := rankLine(line); err != nil {
			return f, fmt.Errorf("%s: this is not a rank file of tiktoken, and weir does not read SentencePiece's own format: convert it to %s", name, fileTokenizer)
		}
		f.pattern, f.special = patternLlama3, llamaSpecial
	default:
		return f, fmt.Errorf("%s: weir does not know how this vocabulary splits text: %s has tokenizer_class %q", name, fileTokConfig, class)
	}
	return f, nil
}

// tokenizerClass reads the class in tokenizer_config.json; empty if there is
// none.
func tokenizerClass(folder fs.FS) (string, error) {
	n, err := readNode(folder, fileTokConfig)
	if err != nil || n.null() {
		return "", err
	}
	var c struct {
		Class string `json:"tokenizer_class"`
	}
	err = n.scan(&c)
	return c.Class, err
}

// qwenSpecial returns the special tokens of Qwen-1.
func qwenSpecial(_ fs.FS, ranks uint32) (map[uint32]string, error) {
	names := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
	for i := range 205 {
		names = append(names, fmt.Sprintf("<|extra_%d|>", i))
	}
	return numbered(names, ranks), nil
}

// kimiSpecial returns the 256 special tokens of Kimi models: those that
// tokenizer_config.json names, and the others by their ids.
func kimiSpecial(folder fs.FS, ranks uint32) (map[uint32]string, error) {
	n, err := readNode(folder, fileTokConfig)
	if err != nil {
		return nil, err
	}
	var config struct {
		Added map[string]struct {
			Content string `json:"content"`
		} `json:"added_tokens_decoder"`
	}
	if err := n.scan(&config); err != nil {
		return nil, err
	}
	out := make(map[uint32]string, 256)
	for id := ranks; id < ranks+256; id++ {
		out[id] = fmt.Sprintf("<|reserved_token_%d|>", id)
	}
	for key, token := range config.Added {
		at := n.at("/added_tokens_decoder/"+key, nil)
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return nil, at.errorf("want an id, have %q", key)
		}
		if _, ok := out[uint32(id)]; !ok {
			return nil, at.errorf("id %d is not one of the 256 that follow the %d ranks", id, ranks)
		}
		if token.Content == "" {
			return nil, at.at("/content", nil).errorf("the token is empty")
		}
		out[uint32(id)] = token.Content
	}
	return out, nil
}

// llamaSpecial returns the special tokens of Llama 3, or those of Llama 3.1 and later,
// whose params.json scales the positions.
func llamaSpecial(folder fs.FS, ranks uint32) (map[uint32]string, error) {
	n, err := readNode(folder, fileParams)
	if err != nil {
		return nil, err
	}
	if n.null() {
		return nil, fmt.Errorf("%s: which special tokens go with it is not known without %s", fileLlama, fileParams)
	}
	var params struct {
		VocabSize jsontext.Value `json:"vocab_size"`
		Scaled    bool           `json:"use_scaled_rope"`
	}
	if err := n.scan(&params); err != nil {
		return nil, err
	}
	size := 0
	if at := n.at("/vocab_size", params.VocabSize); at.null() {
		return nil, at.errorf("it is missing")
	} else if size, err = readLength(at); err != nil {
		return nil, err
	}
	if size != int(ranks)+256 {
		return nil, n.at("/vocab_size", nil).errorf("want the %d ranks of %s and 256 special tokens, %d, have %d", ranks, fileLlama, ranks+256, size)
	}
	names := []string{"<|begin_of_text|>", "<|end_of_text|>"}
	reserved := 0
	reserve := func(n int) {
		for range n {
			names = append(names, fmt.Sprintf("<|reserved_special_token_%d|>", reserved))
			reserved++
		}
	}
	if params.Scaled {
		reserve(2)
		names = append(names, "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>")
	} else {
		reserve(4)
		names = append(names, "<|start_header_id|>", "<|end_header_id|>")
		reserve(1)
		names = append(names, "<|eot_id|>")
	}
	reserve(256 - len(names))
	return numbered(names, ranks), nil
}

func numbered(names []string, from uint32) map[uint32]string {
	out := make(map[uint32]string, len(names))
	for i, name := range names {
		out[from+uint32(i)] = name
	}
	return out
}

// rankLine reads a line of a rank file.
func rankLine(line []byte) (token []byte, rank uint32, err error) {
	word, number, ok := bytes.Cut(bytes.TrimRight(line, "\r"), []byte(" "))
	if !ok {
		return nil, 0, errors.New("want a token in base64, a space and its rank")
	}
	token = make([]byte, base64.StdEncoding.DecodedLen(len(word)))
	n, err := base64.StdEncoding.Decode(token, word)
	if err != nil {
		return nil, 0, err
	}
	r, err := strconv.ParseUint(string(number), 10, 32)
	if err != nil {
		return nil, 0, fmt.Errorf("want a rank, have %q", number)
	}
	return token[:n], uint32(r), nil
}

// load makes the tokenizer.
func (f rankFile) load(folder fs.FS, data []byte) (*Tokenizer, error) {
	ranks, err := f.read(data)
	if err != nil {
		return nil, err
	}
	top := uint32(0)
	for _, rank := range ranks {
		top = max(top, rank)
	}
	if int(top) != len(ranks)-1 {
		return nil, fmt.Errorf("%s: %d tokens have ranks up to %d: some are missing", f.name, len(ranks), top)
	}
	t, err := buildRanks(f.name, ranks, f.pattern, f.nfc)
	if err != nil {
		return nil, err
	}
	special, err := f.special(folder, uint32(len(ranks)))
	if err != nil {
		return nil, err
	}
	if err := t.addSpecial(f.name, special); err != nil {
		return nil, err
	}
	t.layOut()
	return t, nil
}

// buildRanks makes a tokenizer of tokens with their ids, the lower of which are
// merged earlier. It has no special tokens yet.
func buildRanks(file string, ids map[string]uint32, pattern string, nfc bool) (*Tokenizer, error) {
	t := &Tokenizer{byteLevel: true, ranked: true, size: len(ids), ids: newLexicon(len(ids)+256, 8*len(ids)), added: make(map[uint32]AddedToken), repeated: make(map[uint32]string)}
	t.decoding.byteLevel = true
	for token, id := range ids {
		t.ids.set(toByteAlphabet(token), id)
	}
	if nfc {
		t.normalizers = []rewriter{normalForm{compose: true}}
	}
	if err := t.readByteAlphabet(node{file: file}); err != nil {
		return nil, err
	}
	t.mergeRanks(ids)
	t.layOutPieces(t.ids.byID(), true)
	if g, ok := grammar(pattern); ok {
		t.stages, t.lineCuts = []stage{isolate{g.scan}}, cutsAnywhere
	} else {
		m, err := compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		t.stages = []stage{split{m: m, behavior: isolated}}
	}
	t.setLast()
	return t, nil
}

// read returns the ranks by token.
func (f rankFile) read(data []byte) (map[string]uint32, error) {
	ranks := make(map[string]uint32, bytes.Count(data, []byte("\n")))
	lines := make(map[uint32]int)
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			continue
		}
		token, rank, err := rankLine(line)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: line %d: %w", f.name, number, err)
		case rank >= maxIDs:
			return nil, fmt.Errorf("%s: line %d: rank %d is not below %d", f.name, number, rank, maxIDs)
		case len(token) == 0:
			return nil, fmt.Errorf("%s: line %d: the token is empty", f.name, number)
		case lines[rank] > 0:
			return nil, fmt.Errorf("%s: line %d: rank %d is also that of line %d", f.name, number, rank, lines[rank])
		}
		if _, twice := ranks[string(token)]; twice {
			return nil, fmt.Errorf("%s: line %d: token %q stands here again", f.name, number, token)
		}
		ranks[string(token)], lines[rank] = rank, number
	}
	if len(ranks) == 0 {
		return nil, fmt.Errorf("%s: the file is empty", f.name)
	}
	return ranks, nil
}

// mergeRanks makes the merges: any two tokens that make a third, as early as
// that one's rank.
func (t *Tokenizer) mergeRanks(ranks map[string]uint32) {
	pairs := func(do func(a, b, whole uint32)) {
		for token, whole := range ranks {
			for i := 1; i < len(token); i++ {
				if a, ok := ranks[token[:i]]; ok {
					if b, ok := ranks[token[i:]]; ok {
						do(a, b, whole)
					}
				}
			}
		}
	}
	count, top := 0, uint32(0)
	pairs(func(_, _, whole uint32) { count, top = count+1, max(top, whole) })
	t.vocab.merges, t.vocab.ranks = newMergeTable(count), int(top)+1
	pairs(func(a, b, whole uint32) { t.vocab.merges.insert(a, b, uint64(whole)<<32|uint64(whole)) })
}

// addSpecial adds special tokens, which are found in the text as it comes.
func (t *Tokenizer) addSpecial(file string, special map[uint32]string) error {
	t.known = make([]bool, t.size+len(special))
	for _, id := range t.ids.all() {
		t.known[id] = true
	}
	var tokens []AddedToken
	var patterns []string
	seen := make(map[string]bool)
	for id, content := range special {
		if seen[content] {
			return fmt.Errorf("%s: token %q is special twice", file, content)
		}
		seen[content] = true
		// decodes is what the decoder turns into the content.
		token := AddedToken{ID: id, Content: content, Special: true, decodes: toByteAlphabet(content)}
		t.known[id], t.added[id] = true, token
		tokens = append(tokens, token)
	}
	slices.SortFunc(tokens, func(a, b AddedToken) int { return strings.Compare(a.Content, b.Content) })
	for _, token := range tokens {
		patterns = append(patterns, token.Content)
		if rank, ok := t.ids.get(token.Content); ok {
			t.repeated[rank] = token.Content // an ordinary token of the same text
		}
		t.ids.set(token.Content, token.ID)
	}
	t.rawTokens = newFinder(tokens, patterns)
	return nil
}
