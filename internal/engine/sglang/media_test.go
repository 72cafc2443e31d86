package sglang

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/infer"
)

// Each kind has a list in the order of the conversation, data as data URLs; an
// answer without a bound of its own is bounded by the server.
func TestAppendMedia(t *testing.T) {
	b, bad := serverOf(infer.CarriesAll).appendRequest(nil, &infer.Request{ID: "0", Prompt: []uint32{1, 2, 3}, MaxTokens: 9, ToContext: true, Media: []infer.Media{
		{Kind: infer.MediaImage, Type: "image/png", Data: []byte("iVBORw==")},
		{Kind: infer.MediaAudio, Type: "audio/wav", Data: []byte("UklGRg==")},
		{Kind: infer.MediaImage, URL: `http://a/"b`},
		{Kind: infer.MediaVideo, URL: "https://a/v"},
	}}, -1)
	if bad != nil {
		t.Fatal(bad)
	}
	var got, want any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	if err := json.Unmarshal([]byte(`{"rid":"0","stream":true,"input_ids":[1,2,3],"image_data":["data:image/png;base64,iVBORw==","http://a/\"b"],
		"audio_data":["data:audio/wav;base64,UklGRg=="],"video_data":["https://a/v"],"sampling_params":{"max_new_tokens":null}}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, bad := serverOf(Carries).appendRequest(nil, &infer.Request{ID: "0", Prompt: []uint32{1}, MaxTokens: 9, Media: []infer.Media{{URL: "http://a"}}}, -1); bad == nil || bad.Code != infer.CodeUnsupported {
		t.Errorf("to a server that has no use for images: %v", bad)
	}
}

// A server understands the media that it reports, under the newer name of the path or the older
// one. A server that reports none is sent none.
func TestUnderstands(t *testing.T) {
	for _, test := range []struct {
		path, says string
		want       infer.Carries
	}{
		{"/model_info", `{"has_image_understanding":true,"has_audio_understanding":false}`, infer.CarriesImage | infer.CarriesVideo},
		{"/get_model_info", `{"has_image_understanding":true,"has_audio_understanding":true}`, infer.CarriesMedia},
		{"/model_info", `{"has_image_understanding":false,"has_audio_understanding":true}`, infer.CarriesAudio},
		{"/model_info", `{"model_path":"x"}`, 0},
		{"/model_info", `{"has_image_understanding":"yes"}`, 0},
		{"/nothing", `{}`, 0},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != test.path {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, test.says)
		}))
		at, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		e := New(Options{Name: "a", URL: at})
		if got := e.understands(t.Context()); got != test.want {
			t.Errorf("%s %s: %v, want %v", test.path, test.says, got, test.want)
		}
		s.Close()
	}
}
