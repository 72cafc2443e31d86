package allow

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/infer"
)

func head(t testing.TB, body string) *dialect.Head {
	t.Helper()
	h, err := dialect.ParseHead([]byte(body), dialect.NewNames("model"), func(*dialect.Head, string, []byte) error { return nil })
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return h
}

// param returns the field that an error names, or "" without one.
func param(err error) string {
	if err == nil {
		return ""
	}
	return infer.AsError(err).Param
}

// Every field of the list is refused at the top of a body, however its name is
// spelled, how often it stands there and where, and passes where it is allowed by name.
func TestFieldsAreRefused(t *testing.T) {
	for _, f := range List() {
		if f.Place != Body {
			continue
		}
		allowed, err := ParseFields([]string{f.Name})
		if err != nil {
			t.Fatal(err)
		}
		escaped := `\u00` + "0123456789abcdef"[f.Name[0]>>4:][:1] + "0123456789abcdef"[f.Name[0]&15:][:1] + f.Name[1:]
		for _, body := range []string{
			`{"model":"m","` + f.Name + `":1}`, `{"` + f.Name + `":null,"` + f.Name + `":"a"}`, `{"` + escaped + `":{}}`,
			`{"` + strings.ToUpper(f.Name) + `":[]}`, `{"` + f.Name + `":"a","` + f.Name + `":null}`,
			`{"sampling_params":{"` + f.Name + `":1}}`, `{"sampling_params":[{},{"` + escaped + `":1}]}`,
		} {
			h := head(t, body)
			var none Rules
			err := none.CheckRelayed(h, nil)
			if !strings.HasSuffix(strings.ToLower(param(err)), f.Name) || !strings.Contains(err.Error(), "--allow-field "+f.Name) {
				t.Errorf("%s: %v", body, err)
			}
			some := Rules{Fields: allowed}
			if err := some.CheckRelayed(h, nil); err != nil {
				t.Errorf("%s, allowed: %v", body, err)
			}
		}
		if f.Why == "" || f.Source == "" {
			t.Errorf("%s: nothing says why, or where it was found", f.Name)
		}
	}
	var none Rules
	for _, body := range []string{
		`{"kv_transfer_params":null}`, `{"messages":[{"role":"user","content":"priority"}],"priority_":1}`,
		`{"metadata":{"priority":1},"tools":[{"function":{"parameters":{"uuid":{}}}}]}`, `{"sampling_params":null}`, `{"sampling_params":{"temperature":1}}`,
	} {
		if err := none.CheckRelayed(head(t, body), nil); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	// The long s and the Kelvin sign fold into letters, where a reader folds.
	if err := none.CheckRelayed(head(t, `{"ca`+"\u017f"+`t":1,"cache_`+"\u017f"+`alt":1}`), nil); param(err) == "" {
		t.Error("a name passes by its folding")
	}
	if _, err := ParseFields([]string{"priorty"}); err == nil || !strings.Contains(err.Error(), "priority") {
		t.Errorf("%v", err)
	}
}

// Headers that steer engines are refused, in any case and with an underscore for a
// hyphen; others pass.
func TestHeadersAreRefused(t *testing.T) {
	for _, f := range List() {
		if f.Place != Header {
			continue
		}
		allowed, err := ParseFields([]string{f.Name})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{f.Name, strings.ToUpper(f.Name), strings.ReplaceAll(f.Name, "-", "_")} {
			h := http.Header{name: {"1"}}
			var none Fields
			if err := none.CheckHeader(h); param(err) != "header "+f.Name {
				t.Errorf("%s: %v", name, err)
			}
			if err := allowed.CheckHeader(h); err != nil {
				t.Errorf("%s, allowed: %v", name, err)
			}
		}
	}
	var none Fields
	if err := none.CheckHeader(http.Header{"X-Request-Id": {"a"}, "Traceparent": {"b"}, "X": {"c"}, "Authorization": {"d"}}); err != nil {
		t.Error(err)
	}
}

// A part of a conversation may not name its own media hash, by which engines share caches. The
// field is refused there and nowhere else.
func TestPartsAreRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"},"uuid":"a"}]}]}`:      "messages[0].content[0].uuid",
		`{"messages":[{"role":"user","content":[{"image_url":{"url":"data:,","content\u005fhash":"a"}}]}]}`:            "messages[0].content[0].image_url.content_hash",
		`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,","uuid":"a"}]}]}`:               "input[0].content[0].uuid",
		`{"messages":[{"uuid":"a","content":[{"type":"tool_use","input":{"uuid":"b"}},{"type":"text","uuid":null}]}]}`: "",
		`{"documents":[[{"uuid":"a","b":{"uuid":"c"}}]],"metadata":{"uuid":"a"}}`:                                      "",
	} {
		var none Rules
		if err := none.CheckRelayed(head(t, body), nil); param(err) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// References, in every shape that engines have for them.
func TestMediaReferences(t *testing.T) {
	const ref, data = `http://good.example/a.png`, `data:image/png;base64,iVBORw0KGgo=`
	bodies := map[string]string{
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"%"}}]}]}`:                           "messages[0].content[0].image_url.url",
		`{"messages":[{"content":[{"type":"text","text":"a"},{"image_url":"%"}]}]}`:                           "messages[0].content[1].image_url",
		`{"messages":[[{"content":[{"\u0069mage_url":{"detail":"low","\u0075rl":"%"}}]}]]}`:                   "messages[0][0].content[0].image_url.url",
		`{"messages":[{"content":[{"image_url":{"url":"data:,"},"image_url":{"url":"data:,","url":"%"}}]}]}`:  "messages[0].content[0].image_url.url",
		`{"messages":[{"content":[{"type":"audio_url","audio_url":{"url":"%"}}]}]}`:                           "messages[0].content[0].audio_url.url",
		`{"messages":[{"content":[{"video_url":{"url":"%"}}]}]}`:                                              "messages[0].content[0].video_url.url",
		`{"messages":[{"content":[{"input_audio":"%"}]}]}`:                                                    "messages[0].content[0].input_audio",
		`{"messages":[{"content":[{"type":"file","file":{"file_data":"%"}}]}]}`:                               "messages[0].content[0].file.file_data",
		`{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"%"}}]}]}`:                     "messages[0].content[0].source.url",
		`{"messages":[{"content":[{"type":"tool_result","content":[{"source":{"type":"url","url":"%"}}]}]}]}`: "messages[0].content[0].content[0].source.url",
		`{"input":[{"content":[{"type":"input_image","image_url":"%"}]}]}`:                                    "input[0].content[0].image_url",
		`{"input":[{"content":[{"type":"input_file","file_url":"%"}]}]}`:                                      "input[0].content[0].file_url",
		`{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"%"}]}]}`:       "input[0].output[0].image_url",
		`{"input":[{"text":"a","image":"%"}]}`:                                                                "input[0].image",
		`{"inputs":[{"content":[{"type":"image_url","image_url":{"url":"%"}}]}]}`:                             "inputs[0].content[0].image_url.url",
		`{"images":["data:,","%"]}`: "images[1]",
		`{"images":[{"url":"%"}]}`:  "images[0].url",
		`{"image_data":"%"}`:        "image_data",
		`{"IMAGE_DATA":[["%"]]}`:    "IMAGE_DATA[0][0]",
		`{"audio_data":["%"]}`:      "audio_data[0]",
		`{"queries":{"content":[{"image_url":{"url":"%"}}]},"documents":[{"content":[]}]}`: "queries.content[0].image_url.url",
		`{"documents":[{"content":[{"type":"image_url","image_url":{"url":"%"}}]}]}`:       "documents[0].content[0].image_url.url",
	}
	listed, err := ParseMedia([]string{"data", "http://good.example/"})
	if err != nil {
		t.Fatal(err)
	}
	everything, _ := ParseMedia([]string{"any"})
	check := func(m Media, body string) string { return param(m.CheckMedia(&Fields{}, head(t, body))) }
	for body, where := range bodies {
		with := func(ref string) string { return strings.ReplaceAll(body, "%", ref) }
		for _, bad := range []string{ref, "file:///etc/passwd", "/etc/passwd", "a.png", "//good.example/a.png", " data:,", `\u0068ttp:\/\/evil.example`, "data:../../a.png"} {
			if got := check(Media{}, with(bad)); got != where {
				t.Errorf("%s: refused %q, want %q", with(bad), got, where)
			}
			if got := check(everything, with(bad)); got != "" {
				t.Errorf("%s: refused %q where any may pass", with(bad), got)
			}
			if got := check(listed, with(bad)); (got == "") != (bad == ref) {
				t.Errorf("%s: refused %q where one host may pass", with(bad), got)
			}
		}
		if got := check(Media{}, with(data)); got != "" {
			t.Errorf("%s: refused %q", with(data), got)
		}
	}
	for _, body := range []string{
		`{"messages":[{"content":"see http://good.example/a.png"},{"content":[{"type":"text","text":"http://good.example/a.png"}]}]}`,
		`{"messages":[{"content":[{"type":"tool_use","input":{"image_url":"http://a.example","image":{"url":"/x"}}}]}]}`,
		`{"messages":[{"tool_calls":[{"function":{"arguments":{"image":"http://a.example"}}}]}]}`,
		`{"tools":[{"function":{"parameters":{"properties":{"image_url":{"default":"http://a.example"},"image":"x"}}}}]}`,
		`{"response_format":{"json_schema":{"image":"a"}},"metadata":{"image":"http://a.example"}}`,
		`{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"/9j/4AAQ"}}]}],"audio":{"voice":"alloy","format":"wav"}}`,
		`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}]}`,
		`{"documents":[{"title":"a","url":"http://a.example","source":"http://b.example"}],"input":["a",1,2.5e3,true,null,[],{}, [1 , 2]]}`,
	} {
		if got := check(Media{}, body); got != "" {
			t.Errorf("%s: refused %q", body, got)
		}
	}
}

// A prefix is compared in the parts of a URL, as every reader understands them.
func TestMediaPrefixes(t *testing.T) {
	m, err := ParseMedia([]string{"https://Good.example/public", "http://good.example:8080/", "http://[2001:db8::1]/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ok := range []string{
		"https://good.example/public", "https://good.example/public/a.png", "HTTPS://GOOD.EXAMPLE:443/public/a.png?x=/../b", "https://good.example/public/%20a.png",
		"http://good.example:8080/", "http://good.example:8080", "http://good.example:8080/a", "http://[2001:DB8::1]:80/x", "https://good.example/public/a/",
	} {
		if !m.allows(ok) {
			t.Errorf("%s does not pass", ok)
		}
	}
	for _, bad := range []string{
		"", "https://good.example/", "https://good.example/publicity", "http://good.example/public/a", "https://good.example:8443/public/", "https://good.example.evil.example/public/",
		"https://good.example@evil.example/public/", "https://good.example:443@evil.example/public/", "https://user@good.example/public/a", "https://evil.example/https://good.example/public/",
		"//good.example/public/a", "https:/good.example/public/a", "https:good.example/public/a", "https:///good.example/public/a", "https://good.example\\@evil.example/public/", "https:\\\\good.example\\public\\a",
		"https://good.example/public/../secret", "https://good.example/public/./../secret", "https://good.example/public/%2e%2e/secret", "https://good.example/public/%2E./secret",
		"https://good.example/public/..%2fsecret", "https://good.example/public/%252e%252e/secret", "https://good.example/public//../secret", "https://good.example//public/a", "https://good.example/public/..;/secret",
		"https://good.example/public/%5c..%5c", "https://good.example/public/%00", "https://good.example/public/a\x00", "https://good.example/public/a\n", " https://good.example/public/a", "https://good.example/public/a ",
		"https://good.example#@evil.example/public/a", "https://good.example/public/a#", "https://good.example?@evil.example/public/a", "https://good%2eexample/public/a", "https://good.example./public/a", "https://göod.example/public/a",
		"ftp://good.example/public/a", "file://good.example/public/a", "https://good.example:/public/a", "https://[::ffff:1.2.3.4]/public", "javascript:https://good.example/public", "https://good.example/public/%", "https://good.example/public/%2",
	} {
		if m.allows(bad) {
			t.Errorf("%q passes", bad)
		}
	}
	for _, bad := range []string{"", "all", "good.example", "https://", "https://a@good.example/", "https://good.example/a?b", "ftp://good.example/", "https://good.example/../"} {
		if _, err := ParseMedia([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestPaths(t *testing.T) {
	more, err := RelayPaths([]string{"/v1/images/", "/score"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]bool{
		"/v1/embeddings": {true, true}, "/v1/images/generations": {false, true}, "/score": {false, true}, "/v1/images": {false, false},
		"/v1/load_lora_adapter": {false, false}, "/v1/unload_lora_adapter": {false, false}, "/v1/": {false, false}, "/v1/embeddings/": {false, false},
		"/v1/chat/completions/render": {false, false}, "/sleep": {false, false}, "/scored": {false, false},
	} {
		if got := [2]bool{Paths{}.Has(path), more.Has(path)}; got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	for _, bad := range []string{"/v1/%2e%2e/x", "/v1/..%2fx", "/v1/..%2Fx", "/v1/a%5cb", "/v1/%00", "/v1/%0d%0a", "/v1/%1f", "/v1/%7f", "/v1/../x", "/v1/.", "/v1//x", "/v1/%252e", "/v1/..;a/x", "v1", "", "/v1/%zz%", "/v1/\x01"} {
		if err := CheckPlain(bad); err == nil {
			t.Errorf("%q is plain", bad)
		}
		if _, err := RelayPaths([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, good := range []string{"/v1/chat/completions", "/", "/v1/a/", "/v1/%C3%A9", "/v1/a.b", "/v1/..a"} {
		if err := CheckPlain(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

// However a body is spelled, the scan ends, and it finds each image_url that another
// reader finds in a message.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}`, `{"a":[1,"\"",{"b":[]},{} ],"image":[[]]}`,
		"{ \"messages\" :\n[ { \"content\" : [ { \"\\u0069mage_url\" : \"\\/etc\" , \"x\":-1.5e3} ] } , null ] }",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		h, err := dialect.ParseHead([]byte(body), dialect.NewNames("model"), func(*dialect.Head, string, []byte) error { return nil })
		if err != nil {
			return
		}
		err = (&Media{}).CheckMedia(&Fields{}, h)
		var read struct {
			Messages []struct {
				Content []struct {
					Image any `json:"image_url"`
				}
			}
		}
		if json.Unmarshal([]byte(body), &read) != nil {
			return
		}
		for _, m := range read.Messages {
			for _, part := range m.Content {
				s, _ := part.Image.(string)
				if o, ok := part.Image.(map[string]any); ok {
					s, _ = o["url"].(string)
				}
				if s != "" && !strings.EqualFold(s[:min(5, len(s))], "data:") && err == nil {
					t.Errorf("%s: %q passes", body, s)
				}
			}
		}
	})
}

// The scan costs little beside reading the head, and allocates next to nothing.
func BenchmarkScan(b *testing.B) {
	text := strings.Repeat("Low dams let boats pass. ", 400)
	message := `{"role":"user","content":[{"type":"text","text":"` + text + `"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("QUJD", 2500) + `"}}]}`
	body := `{"model":"m","messages":[` + strings.Join(slices.Repeat([]string{message}, 10), ",") + `]}`
	b.Run("head", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			head(b, body)
		}
	})
	b.Run("scan", func(b *testing.B) {
		h := head(b, body)
		var p Rules
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.CheckRelayed(h, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Where only what is below a URL may pass, nothing passes that others read as a URL of
// another host or folder, and data passes.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"https://good.example/public/a.png", "https://good.example:443/public/../x", "https://good.example@evil.example/public/", "data:image/png;base64,iVBO",
		"DATA:,../../a", "//good.example/public/", "https://good.example/public/%2e%2e/a", "https://good.example/public/a;b=..//c", "file:///etc/passwd", "https:\\\\good.example\\public\\a"} {
		f.Add([]byte(s))
	}
	m, err := ParseMedia([]string{"https://good.example/public/"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, ref []byte) {
		if m.Check("x", ref) != nil || len(ref) == 0 {
			return
		}
		u, err := url.Parse(string(ref))
		switch {
		case len(ref) > 5 && strings.EqualFold(string(ref[:5]), "data:"): // of any bytes
			if bytes.Contains(ref, []byte("../")) {
				t.Fatalf("%q passes as data", ref)
			}
		case err != nil || u.Scheme != "https" || !strings.EqualFold(u.Hostname(), "good.example") || u.User != nil || u.Port() != "" && u.Port() != "443" ||
			!strings.HasPrefix(path.Clean(u.Path)+"/", "/public/"):
			t.Fatalf("%q passes: %+v, %v", ref, u, err)
		}
	})
}
