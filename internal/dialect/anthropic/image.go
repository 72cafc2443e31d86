package anthropic

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/dialect/media"
	"weir/internal/infer"
)

// imageTypes are the media types of an image that the API has.
var imageTypes = []string{"image/jpeg", "image/png", "image/gif", "image/webp"}

// image reads an image block into a content.
func (c *conversation) image(b *block, into *dialect.Content) error {
	what := fmt.Sprintf("%s.type \"image\"", b.path)
	if c.d.endpoint == CountTokens {
		return &infer.Error{Code: infer.CodeUnsupported, Param: b.path + ".type",
			Message: fmt.Sprintf("%s is not supported by %s: how many tokens an image has is known to the engine alone, which says it in an answer's usage", what, c.d.endpoint)}
	}
	if err := c.d.TakesMedia(b.path+".type", what, infer.MediaImage); err != nil {
		return err
	}
	var source []byte
	err := b.fields(func(field string, value []byte) bool {
		if field == "source" {
			source = value
		}
		return field == "source"
	})
	if err == nil {
		err = b.want("source", "an object", '{', source)
	}
	if err != nil {
		return err
	}
	m, err := c.d.imageSource(b.path+".source", source)
	if err != nil {
		return err
	}
	into.AddMedia(infer.MediaImage)
	c.d.Media = append(c.d.Media, m)
	return nil
}

// imageSource reads where an image comes from.
func (d *decoding) imageSource(path string, raw []byte) (m infer.Media, err error) {
	given := map[string][]byte{}
	err = dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type", "media_type", "data", "url", "file_id":
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(path+"."+name, "a string", value)
			}
			given[name] = value
			return nil
		}
		return d.Unsupported(path + "." + dialect.Clip(name, 64))
	})
	if err != nil {
		return m, err
	}
	need := func(names ...string) error {
		for _, name := range names {
			if given[name] == nil {
				return infer.Invalid(path+"."+name, "%s.%s is required", path, name)
			}
		}
		for _, name := range []string{"media_type", "data", "url", "file_id"} {
			if given[name] != nil && !slices.Contains(names, name) {
				return infer.Invalid(path+"."+name, "%s.%s does not belong to a source of this type; leave it out", path, name)
			}
		}
		return nil
	}
	if given["type"] == nil {
		return m, infer.Invalid(path+".type", "%s.type is required: base64 or url", path)
	}
	switch kind := dialect.NameOf(given["type"]); kind {
	case "base64":
		if err := need("media_type", "data"); err != nil {
			return m, err
		}
		mediaType := dialect.NameOf(given["media_type"])
		if !slices.Contains(imageTypes, mediaType) {
			return m, infer.Invalid(path+".media_type", "%s.media_type is %q; it must be %s", path, dialect.Clip(mediaType, 40), strings.Join(imageTypes, ", "))
		}
		return media.FromData(path+".media_type", path+".data", infer.MediaImage, mediaType, dialect.Spelled(given["data"]))
	case "url":
		if err := need("url"); err != nil {
			return m, err
		}
		return media.FromURL(path+".url", infer.MediaImage, dialect.Spelled(given["url"]))
	case "file":
		return m, &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
			Message: fmt.Sprintf("%s.type \"file\" is not supported: weir keeps no files; send the image itself, in base64, or its URL", path)}
	default:
		return m, infer.Invalid(path+".type", "%s.type is %q; it must be base64 or url", path, dialect.Clip(kind, 32))
	}
}
