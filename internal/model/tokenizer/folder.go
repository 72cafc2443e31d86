package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// maxFile bounds a file of a model folder. The largest tokenizer.json in use
// is about 35 MB.
const maxFile = 128 << 20

// DefaultTemplate is the name of the chat template that is used when none is
// asked for.
const DefaultTemplate = "default"

// Model is what weir reads of a model's folder.
type Model struct {
	Tokenizer *Tokenizer
	// EOS are the ids that end an answer, ascending: those of
	// generation_config.json or else config.json, and the tokenizer's own.
	EOS []uint32
	// ContextLength is the most ids of prompt and answer together; 0 if the
	// folder does not say.
	ContextLength int
	// VocabSize is the width of the model's output as config.json states it, or else
	// Tokenizer.Size. Ids from Tokenizer.Size on are padding.
	VocabSize int
	// Placeholders are the ids that stand for a part of media in a prompt, by its
	// kind, as config.json names them. That of some models is written by the
	// engine alone, and a template writes another token.
	Placeholders map[infer.MediaKind]uint32
	// SpecialTokens are the token strings that tokenizer_config.json names
	// ("bos_token", "eos_token", "pad_token"...), as chat templates see them.
	SpecialTokens map[string]string
	// BOSToken and EOSToken are the two that nearly every template writes;
	// empty if there is none.
	BOSToken, EOSToken string
	// ChatTemplates are the sources of the chat templates by name; most models
	// have DefaultTemplate alone or none.
	ChatTemplates map[string]string
	// Fingerprint names the bytes of tokenizer.json or of the rank file. Equal fingerprints give
	// equal ids for equal text.
	Fingerprint string
}

// Load reads a Hugging Face model folder. Only tokenizer.json must be there, or
// instead of it a vocabulary in tiktoken's form whose grammar is known: Qwen-1's
// qwen.tiktoken, Kimi's tiktoken.model, Llama-3's tokenizer.model with
// params.json; or Mistral's tekken.json. An error names the file and the place in it.
func Load(folder fs.FS) (*Model, error) {
	data, err := readFile(folder, fileTokenizer)
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	hashed := make(chan hash.Hash, 1)
	if data != nil {
		go func() { hashed <- hashOf(data) }() // takes a quarter of the time of parsing
		t, err = parse(data)
	} else {
		if t, data, err = loadRanks(folder); err == nil && t == nil {
			t, data, err = loadTekken(folder)
		}
		hashed <- hashOf(data)
	}
	if err == nil && t == nil {
		err = fmt.Errorf("%s: the model's folder has neither this file, nor a vocabulary in tiktoken's format, nor Mistral's %s", fileTokenizer, fileTekken)
	}
	if err != nil {
		return nil, err
	}
	sum := fingerprint(t, <-hashed)
	m := &Model{
		Tokenizer:     t,
		SpecialTokens: make(map[string]string),
		ChatTemplates: make(map[string]string),
		Fingerprint:   hex.EncodeToString(sum[:16]),
	}
	limit, err := m.readTokenizerConfig(folder)
	if err != nil {
		return nil, err
	}
	if err := m.readTemplates(folder); err != nil {
		return nil, err
	}
	if err := m.readConfigs(folder, limit); err != nil {
		return nil, err
	}
	return m, nil
}

func hashOf(data []byte) hash.Hash {
	h := sha256.New()
	h.Write(data)
	return h
}

// fingerprint hashes what ids depend on: the file, whose hash the caller has, and the
// special tokens that a rank file does not hold.
func fingerprint(t *Tokenizer, h hash.Hash) []byte {
	if t.ranked {
		for _, token := range t.AddedTokens() {
			fmt.Fprintf(h, "%d %q\n", token.ID, token.Content)
		}
	}
	return h.Sum(nil)
}

// readFile returns nil for a file that is not there.
func readFile(folder fs.FS, name string) ([]byte, error) {
	f, err := folder.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	tooLarge := fmt.Errorf("%s: the file is larger than %d MiB", name, maxFile>>20)
	info, err := f.Stat()
	if err == nil && info.Size() > maxFile {
		return nil, tooLarge
	}
	room := bytes.MinRead // to find the end
	if info != nil && info.Mode().IsRegular() {
		room += int(info.Size())
	}
	data := bytes.NewBuffer(makeLarge[byte](room)[:0])
	if _, err := data.ReadFrom(io.LimitReader(f, maxFile+1)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if data.Len() > maxFile { // it is no regular file, or grows
		return nil, tooLarge
	}
	return data.Bytes(), nil
}

// readNode reads a JSON file's top, if the file is there.
func readNode(folder fs.FS, name string) (node, error) {
	data, err := readFile(folder, name)
	return node{file: name, value: jsontext.Value(data)}, err
}

// readTokenizerConfig takes token strings and templates, and gives the length
// the tokenizer's configuration allows.
func (m *Model) readTokenizerConfig(folder fs.FS) (limit int, err error) {
	n, err := readNode(folder, fileTokConfig)
	if err != nil || n.null() {
		return 0, err
	}
	var members map[string]jsontext.Value
	if err := n.scan(&members); err != nil {
		return 0, err
	}
	for name, value := range members {
		at := n.at("/"+name, value)
		switch {
		case at.null():
		case name == "chat_template":
			err = m.readTemplateSetting(at)
		case name == "added_tokens_decoder":
			err = m.checkAddedTokens(at)
		case name == "model_max_length":
			limit, err = readLength(at)
		case strings.HasSuffix(name, "_token") && (value.Kind() == '"' || value.Kind() == '{'):
			m.SpecialTokens[name], err = readTokenString(at)
		}
		if err != nil {
			return 0, err
		}
	}
	m.BOSToken, m.EOSToken = m.SpecialTokens["bos_token"], m.SpecialTokens["eos_token"]
	return limit, nil
}

// readTokenString reads a token given as a string or as an object with the
// token's flags.
func readTokenString(n node) (string, error) {
	var token struct {
		Content string `json:"content"`
	}
	if n.value.Kind() == '{' {
		err := n.scan(&token)
		return token.Content, err
	}
	err := n.scan(&token.Content)
	return token.Content, err
}

// checkAddedTokens refuses tokens that the reference would add to those of
// tokenizer.json.
func (m *Model) checkAddedTokens(n node) error {
	var tokens map[string]struct {
		Content string `json:"content"`
	}
	if err := n.scan(&tokens); err != nil {
		return err
	}
	for id, token := range tokens {
		got, ok := m.Tokenizer.ID(token.Content)
		if !ok || fmt.Sprint(got) != id {
			return n.at("/"+id, nil).unsupported(fmt.Sprintf("adding token %q, which %s does not have with this id,", token.Content, fileTokenizer))
		}
	}
	return nil
}

// readTemplateSetting reads chat_template: a source, or a list of named ones.
func (m *Model) readTemplateSetting(n node) error {
	if n.value.Kind() == '"' {
		var source string
		err := n.scan(&source)
		m.ChatTemplates[DefaultTemplate] = source
		return err
	}
	var named []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	err := n.scan(&named)
	for _, t := range named {
		m.ChatTemplates[t.Name] = t.Template
	}
	return err
}

// readTemplates reads the templates that have files of their own, which come
// before those of tokenizer_config.json.
func (m *Model) readTemplates(folder fs.FS) error {
	source, err := readFile(folder, fileTemplate)
	if err != nil {
		return err
	}
	if source != nil {
		m.ChatTemplates[DefaultTemplate] = string(source)
	}
	entries, err := fs.ReadDir(folder, dirTemplates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", dirTemplates, err)
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".jinja")
		if !ok || entry.IsDir() {
			continue
		}
		source, err := readFile(folder, path.Join(dirTemplates, entry.Name()))
		if err != nil {
			return err
		}
		m.ChatTemplates[name] = string(source)
	}
	return nil
}

// readConfigs takes end ids, context length and vocabulary size.
func (m *Model) readConfigs(folder fs.FS, limit int) error {
	config, err := readNode(folder, fileConfig)
	if err != nil {
		return err
	}
	generation, err := readNode(folder, fileGeneration)
	if err != nil {
		return err
	}
	m.VocabSize = m.Tokenizer.Size()
	var fields configFields
	if !config.null() {
		if fields, err = readConfig(config); err != nil {
			return err
		}
		if fields.vocabSize > 0 {
			m.VocabSize = fields.vocabSize
		}
	}
	m.Placeholders = fields.placeholders
	m.ContextLength = fields.contextLength
	if limit > 0 && (m.ContextLength == 0 || limit < m.ContextLength) {
		m.ContextLength = limit
	}
	ids := fields.eos
	if !generation.null() {
		var g struct {
			EOS jsontext.Value `json:"eos_token_id"`
		}
		if err := generation.scan(&g); err != nil {
			return err
		}
		if at := generation.at("/eos_token_id", g.EOS); !at.null() {
			if ids, err = readIDs(at); err != nil {
				return err
			}
		}
	}
	if id, ok := m.Tokenizer.ID(m.EOSToken); ok {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	m.EOS = slices.Compact(ids)
	for _, id := range m.EOS {
		if int(id) >= max(m.VocabSize, m.Tokenizer.Size()) {
			return fmt.Errorf("%s: /eos_token_id: id %d is not below the vocabulary's size, %d", generation.file, id, m.VocabSize)
		}
	}
	return nil
}

type configFields struct {
	contextLength, vocabSize int
	eos                      []uint32
	placeholders             map[infer.MediaKind]uint32
}

// readConfig reads config.json. A model of several kinds of input keeps what
// concerns text in text_config.
func readConfig(n node) (configFields, error) {
	var c struct {
		Positions jsontext.Value `json:"max_position_embeddings"`
		NPosition jsontext.Value `json:"n_positions"`
		VocabSize jsontext.Value `json:"vocab_size"`
		EOS       jsontext.Value `json:"eos_token_id"`
		Text      jsontext.Value `json:"text_config"`

		ImageID    jsontext.Value `json:"image_token_id"`
		ImageIndex jsontext.Value `json:"image_token_index"`
		AudioID    jsontext.Value `json:"audio_token_id"`
		AudioIndex jsontext.Value `json:"audio_token_index"`
		VideoID    jsontext.Value `json:"video_token_id"`
		VideoIndex jsontext.Value `json:"video_token_index"`
	}
	var out configFields
	if err := n.scan(&c); err != nil {
		return out, err
	}
	if at := n.at("/text_config", c.Text); !at.null() {
		var err error
		if out, err = readConfig(at); err != nil {
			return out, err
		}
	}
	for _, field := range []struct {
		name  string
		value jsontext.Value
		into  *int
	}{
		{"n_positions", c.NPosition, &out.contextLength},
		{"max_position_embeddings", c.Positions, &out.contextLength},
		{"vocab_size", c.VocabSize, &out.vocabSize},
	} {
		if at := n.at("/"+field.name, field.value); !at.null() {
			length, err := readLength(at)
			if err != nil {
				return out, err
			}
			*field.into = length
		}
	}
	if at := n.at("/eos_token_id", c.EOS); !at.null() {
		ids, err := readIDs(at)
		if err != nil {
			return out, err
		}
		out.eos = ids
	}
	for kind, values := range [infer.NumMediaKinds][2]jsontext.Value{{c.ImageIndex, c.ImageID}, {c.AudioIndex, c.AudioID}, {c.VideoIndex, c.VideoID}} {
		for _, v := range values {
			// Old models have -200 or null here, for no token at all.
			if id, err := strconv.ParseUint(string(v), 10, 32); err == nil {
				if out.placeholders == nil {
					out.placeholders = map[infer.MediaKind]uint32{}
				}
				out.placeholders[infer.MediaKind(kind)] = uint32(id)
			}
		}
	}
	return out, nil
}

// readLength reads a positive whole number. Some configurations write 1e30 for
// "no limit"; that is 0.
func readLength(n node) (int, error) {
	var length float64
	if err := n.scan(&length); err != nil {
		return 0, err
	}
	switch {
	case length >= math.MaxInt32:
		return 0, nil
	case length < 1 || length != math.Trunc(length):
		return 0, n.errorf("want a positive whole number, have %s", n.value)
	}
	return int(length), nil
}

// readIDs reads one id or a list of them.
func readIDs(n node) ([]uint32, error) {
	if n.value.Kind() == '[' {
		var ids []uint32
		err := n.scan(&ids)
		return ids, err
	}
	var id uint32
	err := n.scan(&id)
	return []uint32{id}, err
}
