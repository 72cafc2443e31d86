package media

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"weir/internal/infer"
)

var b64 = base64.StdEncoding.EncodeToString

const (
	pngHead  = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	jpegHead = "\xff\xd8\xff\xe0\x00\x10JFIF"
	webpHead = "RIFF\x10\x00\x00\x00WEBPVP8 "
	waveHead = "RIFF\x10\x00\x00\x00WAVEfmt "
)

func TestFromURL(t *testing.T) {
	for _, test := range []struct {
		kind infer.MediaKind
		raw  string
		url  string // of a reference
		typ  string
		data string
	}{
		{infer.MediaImage, "https://a.example/x.png?q=1#f", "https://a.example/x.png?q=1#f", "", ""},
		{infer.MediaVideo, "HTTP://127.0.0.1:8000/v", "HTTP://127.0.0.1:8000/v", "", ""},
		{infer.MediaImage, "data:image/png;base64," + b64([]byte(pngHead)), "", "image/png", pngHead},
		{infer.MediaImage, "DATA:Image/JPG;charset=x;BASE64," + b64([]byte(jpegHead)), "", "image/jpeg", jpegHead},
		{infer.MediaImage, "data:image/webp;base64," + b64([]byte(webpHead)), "", "image/webp", webpHead},
		{infer.MediaImage, "data:image/bmp;base64," + b64([]byte("BM")), "", "image/bmp", "BM"},
		{infer.MediaAudio, "data:audio/x-wav;base64," + b64([]byte(waveHead)), "", "audio/wav", waveHead},
		{infer.MediaVideo, "data:video/jpeg;base64," + b64([]byte("a")) + "", "", "video/jpeg", "a"},
	} {
		m, err := FromURL("f", test.kind, []byte(test.raw))
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
			continue
		}
		b, err := Bytes(&m)
		if m.Kind != test.kind || m.URL != test.url || m.Type != test.typ || string(b) != test.data || err != nil {
			t.Errorf("%s: %+v, %q, %v", test.raw, m, b, err)
		}
		again, err := FromURL("f", test.kind, urlOf(&m))
		if err != nil || again.URL != m.URL || again.Type != m.Type || !bytes.Equal(again.Data, m.Data) {
			t.Errorf("%s: as a URL again %+v, %v", test.raw, again, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for raw, says := range map[string]string{
		"":                                        "f is empty: send an http or https URL",
		"x.png":                                   "f is not a URL",
		"/etc/passwd":                             "f is not a URL",
		"file:///etc/passwd":                      `scheme "file"`,
		"ftp://a/b":                               `scheme "ftp"`,
		"http:///b":                               "no host",
		"http://[::1":                             "f is not a URL",
		"data:image/png;base64":                   "without a comma",
		"data:image/png,abcd":                     "not base64",
		"data:;base64,AAAA":                       "without a media type: write data:image/png;base64,DATA",
		"data:audio/wav;base64,AAAA":              `"audio/wav": want one of kind image`,
		"data:image/png;base64,":                  "holds no data",
		"data:image/png;base64,AAA":               "length is 3",
		"data:image/png;base64,A===":              "with 3 of padding",
		"data:image/png;base64,AB==":              "no encoder writes",
		"data:image/png;base64,AA==AAAA":          `byte 2 is '='`,
		"data:image/png;base64,AA\nAA":            "leave out line ends",
		"data:image/png;base64,AA-_":              "the alphabet of URLs",
		"data:image/png;base64,AA%3D":             `byte 2 is '%'`,
		"data:image/png;base64,/9j/4AAQSkZJ":      "is image/png, but the data is image/jpeg; set it to image/jpeg",
		"http://a/" + strings.Repeat("x", MaxURL): "a URL may have 8192",
	} {
		_, err := FromURL("f", infer.MediaImage, []byte(raw))
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != infer.CodeInvalid || e.Param != "f" || !strings.Contains(e.Message, says) {
			t.Errorf("%.60q: %v, want %q", raw, err, says)
		}
	}
	if _, err := FromFormat("a.format", "a.data", "aac", []byte("AAAA")); err == nil || !strings.Contains(err.Error(), "wav, mp3, flac or ogg") {
		t.Error(err)
	}
	if _, err := FromFormat("a.format", "a.data", "wav", []byte("data:audio/wav;base64,AAAA")); err == nil || !strings.Contains(err.Error(), "what follows the comma") {
		t.Error(err)
	}
	if m, err := FromFormat("a.format", "a.data", "MP3", []byte("AAAA")); err != nil || m.Type != "audio/mpeg" {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := FromBase64("f", infer.MediaImage, []byte(b64([]byte(pngHead)))); err != nil || m.Type != "image/png" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := FromBase64("f", infer.MediaImage, []byte("AAAA")); err == nil || !strings.Contains(err.Error(), "data:image/png;base64,DATA") {
		t.Error(err)
	}
}

// FuzzFromURL: nothing panics, refusals are coded, and what is accepted decodes,
// and is the same once more.
func FuzzFromURL(f *testing.F) {
	for _, s := range []string{"https://a/b", "data:image/png;base64," + b64([]byte(pngHead)), "data:image/gif;base64,R0lGODlh", "data:,", "data:image/png;base64,A==="} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for kind := range infer.NumMediaKinds {
			m, err := FromURL("f", kind, raw)
			if err != nil {
				var e *infer.Error
				if !errors.As(err, &e) || e.Code != infer.CodeInvalid || len(e.Message) > 1<<10 {
					t.Fatalf("%v", err)
				}
				continue
			}
			if (m.URL == "") == (m.Data == nil) {
				t.Fatalf("%+v", m)
			}
			if m.Data != nil {
				b, err := Bytes(&m)
				if err != nil || len(b) == 0 || b64(b) != string(m.Data) {
					t.Fatalf("%q: %v", m.Data, err)
				}
			}
			if again, err := FromURL("f", kind, urlOf(&m)); err != nil || again.Type != m.Type || !bytes.Equal(again.Data, m.Data) {
				t.Fatalf("%q: %v", raw, err)
			}
		}
	})
}

// urlOf is the reference, or the data as a data URL.
func urlOf(m *infer.Media) []byte {
	if m.URL != "" {
		return []byte(m.URL)
	}
	return fmt.Appendf(nil, "data:%s;base64,%s", m.Type, m.Data)
}
