// Package media reads images, audio and video in requests, by reference or as data,
// for every API. Its errors name the field and the fix.
//
// A reference is a URL of http or https, which is passed to the engine unchanged:
// this package opens no connection and no file. Data is base64. It is checked to be
// base64, to be of the kind that its field demands, and not to be of an evidently
// different type than declared. The engine judges the contents. Data is never copied,
// and only its first bytes are decoded.
package media

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime"
	"net/url"
	"strings"

	"weir/internal/infer"
)

// MaxURL bounds the length of a reference, in bytes. Only the bound of the body
// applies to data.
const MaxURL = 8 << 10

// FromURL reads a URL: a reference, or a data URL. The result shares memory with raw
// only if it holds data.
func FromURL(field string, kind infer.MediaKind, raw []byte) (infer.Media, error) {
	if scheme := raw[:min(len(raw), len("data:"))]; bytes.EqualFold(scheme, []byte("data:")) {
		return fromDataURL(field, kind, raw[len(scheme):])
	}
	want := fmt.Sprintf("send an http or https URL, or the %s itself as data:TYPE;base64,DATA", kind)
	if len(raw) > MaxURL {
		return infer.Media{}, infer.Invalid(field, "%s has %d bytes and no data: before them; a URL may have %d: %s", field, len(raw), MaxURL, want)
	}
	ref := string(raw)
	u, err := url.Parse(ref)
	switch {
	case ref == "":
		return infer.Media{}, infer.Invalid(field, "%s is empty: %s", field, want)
	case err != nil || u.Scheme == "":
		return infer.Media{}, infer.Invalid(field, "%s is not a URL: %s", field, want)
	case !strings.EqualFold(u.Scheme, "http") && !strings.EqualFold(u.Scheme, "https"):
		return infer.Media{}, infer.Invalid(field, "%s is a URL of scheme %.16q: %s", field, u.Scheme, want)
	case u.Host == "":
		return infer.Media{}, infer.Invalid(field, "%s has no host: %s", field, want)
	}
	return infer.Media{Kind: kind, URL: ref}, nil
}

// fromDataURL reads what follows "data:".
func fromDataURL(field string, kind infer.MediaKind, rest []byte) (infer.Media, error) {
	comma := bytes.IndexByte(rest, ',')
	if comma < 0 || comma > 256 {
		return infer.Media{}, infer.Invalid(field, "%s is a data URL without a comma before its data: write data:TYPE;base64,DATA", field)
	}
	head := string(rest[:comma])
	typed, ok := cutSuffixFold(head, ";base64")
	if !ok {
		return infer.Media{}, infer.Invalid(field, "%s is a data URL that is not base64: write data:TYPE;base64,DATA", field)
	}
	mediaType, _, err := mime.ParseMediaType(typed)
	if err != nil {
		return infer.Media{}, infer.Invalid(field, "%s is a data URL without a media type: write data:%s;base64,DATA", field, example(kind))
	}
	return FromData(field, field, kind, mediaType, rest[comma+1:])
}

func cutSuffixFold(s, suffix string) (string, bool) {
	if n := len(s) - len(suffix); n >= 0 && strings.EqualFold(s[n:], suffix) {
		return s[:n], true
	}
	return s, false
}

// FromData reads data in base64 with its declared media type. The fields are the
// paths of both, for errors.
func FromData(typeField, field string, kind infer.MediaKind, mediaType string, data []byte) (infer.Media, error) {
	mediaType = strings.ToLower(mediaType)
	if of, _, _ := strings.Cut(mediaType, "/"); of != kind.String() {
		return infer.Media{}, infer.Invalid(typeField, "%s has the media type %.40q: want one of kind %s, such as %s", typeField, mediaType, kind, example(kind))
	}
	if err := checkBase64(field, data); err != nil {
		return infer.Media{}, err
	}
	mediaType = canonical(mediaType)
	if found := sniff(firstBytes(data)); found != "" && found != mediaType && known(mediaType) {
		return infer.Media{}, infer.Invalid(typeField, "%s is %s, but the data is %s; set it to %s", typeField, mediaType, found, found)
	}
	return infer.Media{Kind: kind, Type: mediaType, Data: data}, nil
}

// FromBase64 reads data without a declared type. The type follows from its first
// bytes.
func FromBase64(field string, kind infer.MediaKind, data []byte) (infer.Media, error) {
	if err := checkBase64(field, data); err != nil {
		return infer.Media{}, err
	}
	mediaType := sniff(firstBytes(data))
	if mediaType == "" {
		return infer.Media{}, infer.Invalid(field, "%s is base64 of no type that its first bytes tell; send it as data:%s;base64,DATA", field, example(kind))
	}
	return FromData(field, field, kind, mediaType, data)
}

// firstBytes decodes the beginning of data.
func firstBytes(data []byte) []byte {
	head := make([]byte, base64.StdEncoding.DecodedLen(base64.StdEncoding.EncodedLen(sniffed)))
	n, _ := base64.StdEncoding.Decode(head, data[:min(len(data), base64.StdEncoding.EncodedLen(sniffed))])
	return head[:n]
}

// audioFormats are the formats of audio that APIs name in a word: OpenAI's two, and
// two more that engines read.
var audioFormats = map[string]string{"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg"}

// FromFormat reads audio in base64 with its declared format, a word.
func FromFormat(formatField, field, format string, data []byte) (infer.Media, error) {
	switch mediaType, ok := audioFormats[strings.ToLower(format)]; {
	case ok:
		return FromData(formatField, field, infer.MediaAudio, mediaType, data)
	case format == "":
		return infer.Media{}, infer.Invalid(formatField, "%s is required: wav, mp3, flac or ogg", formatField)
	}
	return infer.Media{}, infer.Invalid(formatField, "%s is %.32q; it must be wav, mp3, flac or ogg", formatField, format)
}

// Bytes returns the decoded data.
func Bytes(m *infer.Media) ([]byte, error) {
	out := make([]byte, base64.StdEncoding.DecodedLen(len(m.Data)))
	n, err := base64.StdEncoding.Strict().Decode(out, m.Data)
	return out[:n], err
}

// checkBase64 reports what is wrong with data. It is one pass and no copy.
func checkBase64(field string, data []byte) error {
	if len(data) == 0 {
		return infer.Invalid(field, "%s holds no data", field)
	}
	body := bytes.TrimRight(data, "=")
	for i, c := range body {
		if inBase64[c] {
			continue
		}
		hint := "encode it in the standard alphabet (A-Z, a-z, 0-9, + and /)"
		switch c {
		case '-', '_':
			hint = "that is the alphabet of URLs; " + hint
		case '\n', '\r', ' ', '\t':
			hint = "leave out line ends and spaces"
		case ':':
			if bytes.HasPrefix(data, []byte("data:")) {
				hint = "send only what follows the comma of the data URL"
			}
		}
		return infer.Invalid(field, "%s is not base64: byte %d is %q; %s", field, i, c, hint)
	}
	switch padding := len(data) - len(body); {
	case len(data)%4 != 0 || padding > 2:
		return infer.Invalid(field, "%s is not base64: its length is %d with %d of padding, and must be a multiple of 4 with at most 2; it may have been cut", field, len(data), padding)
	case padding > 0:
		// The bits that no byte is made of must be 0, or decoders differ.
		if _, err := base64.StdEncoding.Strict().Decode(make([]byte, 3), data[len(data)-4:]); err != nil {
			return infer.Invalid(field, "%s is not base64: no encoder writes its last 4 bytes, %q; it may have been cut off", field, data[len(data)-4:])
		}
	}
	return nil
}

// inBase64 has the bytes of the standard alphabet.
var inBase64 = func() (in [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		in[c] = true
	}
	return in
}()

func example(kind infer.MediaKind) string {
	return [infer.NumMediaKinds]string{"image/png", "audio/wav", "video/mp4"}[kind]
}

// canonical returns a media type the name that sniff has for it.
func canonical(mediaType string) string {
	switch mediaType {
	case "image/jpg", "image/pjpeg":
		return "image/jpeg"
	case "image/x-png":
		return "image/png"
	case "audio/x-wav", "audio/wave", "audio/vnd.wave":
		return "audio/wav"
	case "audio/mp3", "audio/x-mp3":
		return "audio/mpeg"
	case "audio/x-flac":
		return "audio/flac"
	}
	return mediaType
}

// sniffed is how many of the first bytes tell a type.
const sniffed = 12

// signatures are first bytes, as their formats define them; a dot is any byte.
var signatures = []struct{ mediaType, begins string }{
	{"image/png", "\x89PNG\r\n\x1a\n"},
	{"image/jpeg", "\xff\xd8\xff"},
	{"image/gif", "GIF87a"},
	{"image/gif", "GIF89a"},
	{"image/webp", "RIFF....WEBP"},
	{"audio/wav", "RIFF....WAVE"},
	{"audio/flac", "fLaC"},
}

// known reports whether data of a type would be told by its first bytes.
func known(mediaType string) bool {
	for _, s := range signatures {
		if s.mediaType == mediaType {
			return true
		}
	}
	return false
}

// sniff returns the type that first bytes tell, or none.
func sniff(head []byte) string {
	for _, s := range signatures {
		if len(head) >= len(s.begins) && matches(head, s.begins) {
			return s.mediaType
		}
	}
	return ""
}

func matches(head []byte, begins string) bool {
	for i := range len(begins) {
		if begins[i] != '.' && head[i] != begins[i] {
			return false
		}
	}
	return true
}
