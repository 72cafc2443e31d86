package openai

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/infer"
)

const picture = "data:image/png;base64,iVBORw0KGgo="

// Media leave their kind in the messages, in their place, and nothing else of the
// messages changes; their order is that of the conversation.
func TestMedia(t *testing.T) {
	messages := `[ {"role":"system","content":"é\u00e9"} , {"role":"user", "content":[ {"type":"text","text":"a"},` +
		`{"image_url":{"detail":"low","url":"data:image\/png;base64,iVBORw0KGgo="},"type":"image_url","uuid":null} ,{"type":"input_audio","input_audio":{"format":"wav","data":"UklGRg=="}}]},` +
		`{"role":"tool","tool_call_id":"1","content":[{"type":"video_url","video_url":{"url":"https://a/v.mp4"}},{"type":"image_url","image_url":"http://a/b"},{"type":"audio_url","audio_url":{"url":"http://a/c"}}]}]`
	r, err := decodeFor(infer.CarriesAll, Chat, `{"model":"m","messages":`+messages+`}`)
	if err != nil {
		t.Fatal(err)
	}
	want := `[ {"role":"system","content":"é\u00e9"} , {"role":"user", "content":[ {"type":"text","text":"a"},` +
		`{"type":"image"} ,{"type":"audio"}]},` +
		`{"role":"tool","tool_call_id":"1","content":[{"type":"video"},{"type":"image"},{"type":"audio"}]}]`
	if string(r.Messages) != want {
		t.Errorf("messages %s", r.Messages)
	}
	if diff := cmp.Diff([]infer.Media{
		{Kind: infer.MediaImage, Type: "image/png", Data: []byte("iVBORw0KGgo=")},
		{Kind: infer.MediaAudio, Type: "audio/wav", Data: []byte("UklGRg==")},
		{Kind: infer.MediaVideo, URL: "https://a/v.mp4"},
		{Kind: infer.MediaImage, URL: "http://a/b"},
		{Kind: infer.MediaAudio, URL: "http://a/c"},
	}, r.Media); diff != "" {
		t.Error(diff)
	}
}

func TestMediaRefused(t *testing.T) {
	const at = "messages[0].content[0]"
	for _, test := range []struct {
		carries infer.Carries
		part    string
		code    infer.Code
		param   string
		says    string
	}{
		{0, `{"type":"image_url","image_url":{"url":"` + picture + `"}}`, infer.CodeUnsupported, at + ".type", "image input needs an engine that reads it itself"},
		{infer.CarriesImage, `{"type":"input_audio","input_audio":{}}`, infer.CodeUnsupported, at + ".type", "audio input needs"},
		{infer.CarriesImage | infer.CarriesAudio, `{"type":"video_url","video_url":{}}`, infer.CodeUnsupported, at + ".type", "video input needs"},
		{infer.CarriesAll, `{"type":"file","file":{"file_id":"a"}}`, infer.CodeUnsupported, at + ".type", "send its text, or its pages as image_url"},
		{infer.CarriesAll, `{"type":"odd","odd":{}}`, infer.CodeUnsupported, at + ".type", "text, image_url, input_audio, audio_url and video_url are"},
		{infer.CarriesAll, `{"type":"image_url"}`, infer.CodeInvalid, at + ".image_url", "is required"},
		{infer.CarriesAll, `{"type":"image_url","image_url":7}`, infer.CodeInvalid, at + ".image_url", "an object with url"},
		{infer.CarriesAll, `{"type":"image_url","image_url":{"detail":"low"}}`, infer.CodeInvalid, at + ".image_url.url", "is required"},
		{infer.CarriesAll, `{"type":"image_url","image_url":{"url":null}}`, infer.CodeInvalid, at + ".image_url.url", "must be a string, found null"},
		{infer.CarriesAll, `{"type":"image_url","image_url":{"url":"` + picture + `","detail":3}}`, infer.CodeInvalid, at + ".image_url.detail", "must be a string"},
		{infer.CarriesAll, `{"type":"image_url","image_url":{"url":"` + picture + `","max_dynamic_patch":3}}`, infer.CodeUnsupported, at + ".image_url.max_dynamic_patch", "not supported"},
		{infer.CarriesAll, `{"type":"image_url","image_url":{"url":"` + picture + `"},"text":"x"}`, infer.CodeUnsupported, at + ".text", "not supported"},
		{infer.CarriesAll, `{"type":"input_audio","input_audio":{"format":"wav"}}`, infer.CodeInvalid, at + ".input_audio.data", "is required"},
		{infer.CarriesAll, `{"type":"input_audio","input_audio":{"data":"AAAA"}}`, infer.CodeInvalid, at + ".input_audio.format", "is required"},
		{infer.CarriesAll, `{"type":"input_audio","input_audio":{"data":"AAAA","format":"aac"}}`, infer.CodeInvalid, at + ".input_audio.format", "wav, mp3, flac or ogg"},
	} {
		_, err := decodeFor(test.carries, Chat, `{"model":"m","messages":[{"role":"user","content":[`+test.part+`]}]}`)
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != test.code || e.Param != test.param || !strings.Contains(e.Message, test.says) {
			t.Errorf("%s: %v, param %q, want %q", test.part, err, e.Param, test.says)
		}
	}
}
