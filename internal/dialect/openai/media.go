package openai

import (
	"fmt"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/dialect/media"
	"weir/internal/infer"
)

// place is where a part of media stands in the messages.
type place struct {
	start, end int
	kind       infer.MediaKind
}

// mediaPart reads a part that is not text. Its payload is the field that its type
// names; of the others none may ask for anything.
func (w *messageWalk) mediaPart(i int, part string, raw []byte) error {
	at := func(name string) string { return fmt.Sprintf("%s[%d].%s", w.path("content"), i, name) }
	if f := inner("messages[].content[] " + part); f != nil && f.Treatment == Refused {
		what := at("type") + " " + strconv.Quote(part)
		hint := "leave it out"
		if f.Note != "" {
			hint = f.Note
		}
		return &infer.Error{Code: infer.CodeUnsupported, Param: at("type"), Message: fmt.Sprintf("%s is not supported by %s; %s", what, w.d.Carrier(), hint)}
	}
	kind, ok := mediaParts[part]
	what := fmt.Sprintf("%s %q", at("type"), dialect.Clip(part, 32))
	switch {
	case w.d.endpoint.tokenizes():
		return &infer.Error{Code: infer.CodeUnsupported, Param: at("type"),
			Message: fmt.Sprintf("%s is not supported by %s; only parts of type \"text\" are, as the tokens of others are known to engines alone", what, w.d.Carrier())}
	case !ok:
		return &infer.Error{Code: infer.CodeUnsupported, Param: at("type"),
			Message: fmt.Sprintf("%s is not supported by %s; text, image_url, input_audio, audio_url and video_url are, where the engines take them. An engine of kind openai, which is relayed, gets every part as it is", what, w.d.Carrier())}
	}
	if err := w.d.TakesMedia(at("type"), what, kind); err != nil {
		return err
	}
	var payload []byte
	err := dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case part:
			payload = value
		case "type":
		case "prompt_cache_breakpoint":
			_, err := w.d.Judge(inner(cacheBreakpoint), name, value)
			return err
		default:
			if dialect.KindOf(value) != 'n' {
				return w.d.UnknownMember(at(dialect.Clip(name, 64)), part)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if payload == nil {
		return infer.Invalid(at(part), "%s is required in a part of type %s", at(part), part)
	}
	m, err := w.d.mediaOf(at(part), part, kind, payload)
	if err != nil {
		return err
	}
	start := cap(w.raw) - cap(raw) // as raw is a part of it, with the room behind
	w.media = append(w.media, m)
	w.parts = append(w.parts, place{start, start + len(raw), kind})
	return nil
}

// mediaParts are the types of parts that hold media.
var mediaParts = map[string]infer.MediaKind{
	"image_url": infer.MediaImage, "input_audio": infer.MediaAudio, "audio_url": infer.MediaAudio, "video_url": infer.MediaVideo,
}

// mediaOf reads what a part of media holds.
func (d *decoding) mediaOf(path, part string, kind infer.MediaKind, raw []byte) (m infer.Media, err error) {
	if part == "input_audio" {
		return d.inputAudio(path, raw)
	}
	switch dialect.KindOf(raw) {
	case '"':
		return d.mediaURL(path, kind, raw)
	case '{':
	default:
		return m, dialect.WrongType(path, "an object with url", raw)
	}
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch {
		case name == "url":
			m, err = d.mediaURL(path+".url", kind, value)
		case dialect.KindOf(value) == 'n':
		case name == "detail" && kind == infer.MediaImage && dialect.KindOf(value) != '"':
			err = dialect.WrongType(path+".detail", "a string", value)
		case name == "detail" && kind == infer.MediaImage:
			_, err = d.Judge(inner(imageDetail), path+".detail", value)
		default:
			err = d.UnknownMember(path+"."+dialect.Clip(name, 64), "url", "detail")
		}
		return err
	})
	if err == nil && m.URL == "" && m.Data == nil {
		err = infer.Invalid(path+".url", "%s.url is required", path)
	}
	return m, err
}

func (d *decoding) mediaURL(path string, kind infer.MediaKind, raw []byte) (infer.Media, error) {
	if dialect.KindOf(raw) != '"' {
		return infer.Media{}, dialect.WrongType(path, "a string", raw)
	}
	return media.FromURL(path, kind, dialect.Spelled(raw))
}

// inputAudio reads the object of a part of audio.
func (d *decoding) inputAudio(path string, raw []byte) (m infer.Media, err error) {
	if dialect.KindOf(raw) != '{' {
		return m, dialect.WrongType(path, "an object with data and format", raw)
	}
	var data, format []byte
	word := ""
	err = dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "data":
			data = value
		case "format":
			format = value
		default:
			if dialect.KindOf(value) != 'n' {
				return d.Unsupported(path + "." + dialect.Clip(name, 64))
			}
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	if format != nil {
		if word, err = dialect.StringOf(path+".format", format); err != nil {
			return m, err
		}
	}
	switch {
	case data == nil:
		return m, infer.Invalid(path+".data", "%s.data is required", path)
	case dialect.KindOf(data) != '"':
		return m, dialect.WrongType(path+".data", "a string", data)
	}
	return media.FromFormat(path+".format", path+".data", word, dialect.Spelled(data))
}

// withoutMedia returns the messages with a part {"type":KIND} in the place of each
// part of media: what chat templates know it by, and all that they need of it.
func (w *messageWalk) withoutMedia() []byte {
	size := len(w.raw)
	for _, p := range w.parts {
		size -= p.end - p.start
	}
	out := make([]byte, 0, size+len(w.parts)*len(`{"type":"image"}`))
	from := 0
	for _, p := range w.parts {
		out = append(out, w.raw[from:p.start]...)
		out = append(append(append(out, `{"type":"`...), p.kind.String()...), `"}`...)
		from = p.end
	}
	return append(out, w.raw[from:]...)
}
