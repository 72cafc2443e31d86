package allow

import (
	"bytes"
	"strconv"
	"strings"

	"weir/internal/dialect"
)

// references are the names of fields whose strings engines take for references to
// media, in any of their APIs: as themselves, in an array, or as the url of an object.
var references = map[string]bool{
	"image_url": true, "video_url": true, "audio_url": true, "input_audio": true, // parts of a chat
	"input_image": true, "input_video": true, "file_url": true, "file_data": true, // of responses
	"image": true, "images": true, "video": true, "videos": true, "audio": true, "audios": true, // of embeddings, scores, decisions
	"image_data": true, "video_data": true, "audio_data": true, "image_pil": true, // of SGLang's own API
}

// opaque are the names of fields below which nothing is a part of the conversation:
// what is an image_url there is a word of a schema, or of a tool's arguments.
var opaque = map[string]bool{
	"tools": true, "functions": true, "function": true, "parameters": true, "input_schema": true, "schema": true,
	"json_schema": true, "response_format": true, "structured_outputs": true, "guided_json": true, "arguments": true,
	"chat_template_kwargs": true, "metadata": true,
}

// CheckMedia refuses a body with a reference to media, or with a field in a part of its
// conversation, that may not pass. The body is valid JSON. The check is one more pass
// over it.
func (m *Media) CheckMedia(f *Fields, h *dialect.Head) error { return m.check(f, h, false) }

// CheckURLs is CheckMedia for a body whose media have been decoded to data or URLs.
func (m *Media) CheckURLs(h *dialect.Head) error {
	if m.any {
		return nil
	}
	return m.check(&Fields{}, h, true)
}

func (m *Media) check(f *Fields, h *dialect.Head, urls bool) error {
	var s *scan // one for all
	for _, at := range h.Fields {
		if opaque[at.Name] {
			continue
		}
		ref := references[strings.ToLower(at.Name)]
		if !ref && !composite(h.Body[at.Start:at.End]) {
			continue // nothing in it can be a reference or a field
		}
		if s == nil {
			s = new(scan)
		}
		*s = scan{b: h.Body[:at.End], i: at.Start, media: m, fields: f, urls: urls}
		s.path = append(s.pathRoom[:0], dialect.Clip(at.Name, 64)...)
		s.talk = at.Name == "messages" || at.Name == "input"
		if err := s.value(ref, 0); err != nil {
			return err
		}
	}
	return nil
}

// composite reports whether a JSON value is an array or an object.
func composite(value []byte) bool {
	for _, c := range value {
		switch c {
		case ' ', '\t', '\n', '\r':
		default:
			return c == '{' || c == '['
		}
	}
	return false
}

// partDepth is how deep a part of a conversation stands: in the messages' array, a
// message and its content's array.
const partDepth = 3

// scan is the place in a value that is being looked at.
type scan struct {
	b        []byte
	i        int
	media    *Media
	fields   *Fields
	talk     bool // the value is a conversation
	urls     bool // only what begins as a URL is a reference
	path     []byte
	pathRoom [128]byte
}

// value passes over the value at i. ref says that it is that of a field that holds
// references.
func (s *scan) value(ref bool, depth int) error {
	s.space()
	switch s.b[s.i] {
	case '"':
		raw := s.str()
		if ref {
			if spelled := dialect.Spelled(raw); !s.urls || bytes.HasPrefix(spelled, []byte("http")) {
				return s.media.Check(string(s.path), spelled)
			}
		}
	case '{':
		return s.object(ref, depth)
	case '[':
		return s.array(ref, depth)
	default:
		for s.i < len(s.b) && strings.IndexByte(",]} \t\r\n", s.b[s.i]) < 0 {
			s.i++
		}
	}
	return nil
}

func (s *scan) array(ref bool, depth int) error {
	s.i++
	base := len(s.path)
	for n := 0; ; n++ {
		if s.space(); s.b[s.i] == ']' {
			s.i++
			return nil
		}
		if c := s.b[s.i]; c != '{' && c != '[' && !ref { // most arrays are of ids, or of texts
			if err := s.value(false, depth+1); err != nil {
				return err
			}
		} else {
			s.path = append(strconv.AppendInt(append(s.path[:base], '['), int64(n), 10), ']')
			if err := s.value(ref, depth+1); err != nil {
				return err
			}
			s.path = s.path[:base]
		}
		if s.space(); s.b[s.i] == ',' {
			s.i++
		}
	}
}

func (s *scan) object(ref bool, depth int) error {
	s.i++
	base := len(s.path)
	for {
		if s.space(); s.b[s.i] == '}' {
			s.i++
			return nil
		}
		name := dialect.Spelled(s.str())
		s.space()
		s.i++ // the colon
		s.space()
		s.path = append(append(s.path[:base], '.'), name[:min(len(name), 64)]...)
		if err := s.member(string(name), ref, depth); err != nil {
			return err
		}
		s.path = s.path[:base]
		if s.space(); s.b[s.i] == ',' {
			s.i++
		}
	}
}

func (s *scan) member(name string, ref bool, depth int) error {
	opens := s.b[s.i] == '{' || s.b[s.i] == '['
	if s.talk && !s.urls && depth >= partDepth && s.b[s.i] != 'n' {
		if field := s.fields.of(Part, name); field != nil {
			return field.refusal(string(s.path))
		}
	}
	lower := name
	if strings.ContainsFunc(name, upper) {
		lower = strings.ToLower(name)
	}
	switch {
	case opaque[name], name == "input" && s.b[s.i] == '{': // the arguments of a tool_use
		s.i = dialect.SkipValue(s.b, s.i)
		return nil
	case references[lower], lower == "source" && opens, lower == "url" && ref:
		return s.value(true, depth+1)
	}
	return s.value(false, depth+1)
}

// space passes over white space.
func (s *scan) space() { s.i = dialect.SkipSpace(s.b, s.i) }

// str passes over the string at i and gives it raw.
func (s *scan) str() []byte {
	start := s.i
	s.i = dialect.SkipString(s.b, start)
	return s.b[start:s.i]
}
