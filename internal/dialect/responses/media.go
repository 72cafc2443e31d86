package responses

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/dialect/media"
	"weir/internal/infer"
)

// rich reads a content that may hold media: a user's, or the output of a call.
func (in *input) rich(path string, raw []byte) (*dialect.Content, error) {
	var c dialect.Content
	if dialect.KindOf(raw) != '[' {
		text, err := in.text(path, raw)
		c.AddText(text)
		return &c, err
	}
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		at := fmt.Sprintf("%s[%d]", path, i)
		kind := ""
		if dialect.KindOf(item) == '{' {
			var err error
			if kind, err = typeOf(at, item); err != nil {
				return err
			}
		}
		switch kind {
		case "input_image":
			return in.media(at, kind, infer.MediaImage, item, &c)
		case "input_audio":
			return in.media(at, kind, infer.MediaAudio, item, &c)
		case "input_file":
			return &infer.Error{Code: infer.CodeUnsupported, Param: at + ".type",
				Message: fmt.Sprintf("%s.type \"input_file\" is not supported by engine kind %q, which has nobody to read documents; send their text as input_text, or pages as input_image", at, in.d.Kind)}
		}
		text, err := in.textPart(at, item)
		if err == nil {
			c.AddText(text)
		}
		return err
	})
	return &c, err
}

// user adds a message of the user's.
func (in *input) user(c *dialect.Content) {
	in.flush()
	in.led = true
	in.out = append(c.Append(append(in.out, `,{"role":"user","content":`...)), '}')
}

// media reads a part that is not text.
func (in *input) media(path, part string, kind infer.MediaKind, raw []byte, into *dialect.Content) error {
	if err := in.d.TakesMedia(path+".type", fmt.Sprintf("%s.type %q", path, part), kind); err != nil {
		return err
	}
	var m infer.Media
	given := false
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		at := path + "." + dialect.Clip(name, 64)
		switch {
		case name == "type", dialect.KindOf(value) == 'n':
		case name == "image_url" && kind == infer.MediaImage:
			given = true
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(at, "a string", value)
			}
			m, err = media.FromURL(at, kind, dialect.Spelled(value))
		case name == "input_audio" && kind == infer.MediaAudio:
			given = true
			m, err = in.audio(at, value)
		case name == "detail" && kind == infer.MediaImage:
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(at, "a string", value)
			}
			return in.d.judge(imageDetail, at, value)
		case name == "prompt_cache_breakpoint":
			return in.d.judge(cacheBreakpoint, at, value)
		case name == "file_id" && kind == infer.MediaImage:
			return &infer.Error{Code: infer.CodeUnsupported, Param: at,
				Message: fmt.Sprintf("%s is not supported: weir keeps no files; send the image itself, or its URL, in image_url", at)}
		default:
			return in.d.UnknownMember(at, part, "image_url", "detail")
		}
		return err
	})
	field := map[infer.MediaKind]string{infer.MediaImage: "image_url", infer.MediaAudio: "input_audio"}[kind]
	switch {
	case err != nil:
		return err
	case !given:
		return infer.Invalid(path+"."+field, "%s.%s is required", path, field)
	}
	into.AddMedia(kind)
	in.d.Media = append(in.d.Media, m)
	return nil
}

// audio reads the object of a part of audio.
func (in *input) audio(path string, raw []byte) (m infer.Media, err error) {
	if dialect.KindOf(raw) != '{' {
		return m, dialect.WrongType(path, "an object with data and format", raw)
	}
	var data []byte
	format := ""
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		at := path + "." + dialect.Clip(name, 64)
		switch name {
		case "format":
			format, err = dialect.StringOf(at, value)
		case "data":
			if data = value; dialect.KindOf(value) != '"' {
				err = dialect.WrongType(at, "a string", value)
			}
		default:
			err = in.d.Unsupported(at)
		}
		return err
	})
	switch {
	case err != nil:
		return m, err
	case data == nil:
		return m, infer.Invalid(path+".data", "%s.data is required", path)
	}
	return media.FromFormat(path+".format", path+".data", format, dialect.Spelled(data))
}
