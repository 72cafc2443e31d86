package vocab

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/workload/content"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pngOf returns a PNG of one pixel whose head tells another size.
func pngOf(t testing.TB, wide, high int) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		t.Fatal(err)
	}
	// A signature of 8 bytes, a length of 4, then the head with its checksum.
	b, be := file.Bytes(), binary.BigEndian
	be.PutUint32(b[16:], uint32(wide))
	be.PutUint32(b[20:], uint32(high))
	be.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}

// wave returns a WAVE file of this many bytes of sound at this many a second, with a
// chunk that nobody knows before it.
func wave(rate, size uint32) []byte {
	le := binary.LittleEndian
	b := []byte("RIFF....WAVEjunk\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00\x01\x00\x01\x00")
	b = le.AppendUint32(le.AppendUint32(b, rate/2), rate)
	b = le.AppendUint32(append(b, "\x02\x00\x10\x00data"...), size)
	return append(b, make([]byte, size)...)
}

// The size of an image, and the length of a sound, say how many tokens it is.
func TestMediaTokens(t *testing.T) {
	for size, want := range map[[2]int]int{{1, 1}: 1, {28, 28}: 1, {29, 28}: 2, {100, 57}: 12, {1000, 1000}: 36 * 36, {4000, 4000}: 0} {
		if n, err := imageTokens(pngOf(t, size[0], size[1])); n != want || (err != nil) != (want == 0) {
			t.Errorf("%v: %d tokens, %v", size, n, err)
		}
	}
	for _, test := range []struct{ rate, size, want uint32 }{{32000, 32000, 25}, {32000, 1, 1}, {32000, 1280, 1}, {32000, 1281, 2}, {32000, 0, 0}, {0, 10, 0}} {
		if n, err := waveTokens(wave(test.rate, test.size)); n != int(test.want) || (err != nil) != (test.want == 0) {
			t.Errorf("%+v: %d tokens, %v", test, n, err)
		}
	}
	for _, junk := range []string{"", "RIFF", "RIFF....WAVE", "RIFF....WAVEdata\x05\x00\x00\x00", "RIFF....WAVEfmt \xff\xff\xff\xff"} {
		if n, err := waveTokens([]byte(junk)); err == nil {
			t.Errorf("%q: %d tokens", junk, n)
		}
	}
}

// A prompt gets the tokens of its media in the place of their placeholders, in
// their order and by their bytes.
func TestExpand(t *testing.T) {
	const place, sound = 200, 201
	words, err := content.New(300+1024, func(id uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(id%26), 'a' + byte(id/26%26), 'a' + byte(id/676)}, id >= 300
	})
	if err != nil {
		t.Fatal(err)
	}
	v := New(&sim.Options{ContextLength: 200, Words: words}, nil, map[infer.MediaKind]uint32{infer.MediaImage: place, infer.MediaAudio: sound, infer.MediaVideo: 202}, nil)
	small, large, tone := Medium{Kind: infer.MediaImage, Data: pngOf(t, 10, 10)}, Medium{Kind: infer.MediaImage, Data: pngOf(t, 60, 10)}, Medium{Kind: infer.MediaAudio, Data: wave(32000, 3000)}
	expand := func(prompt []uint32, all ...Medium) []uint32 {
		t.Helper()
		out, err := v.Expand(t.Context(), "r", prompt, all)
		if err != nil {
			t.Fatal(err)
		}
		return out.IDs
	}
	got := expand([]uint32{1, place, 2, sound, place}, small, large, tone)
	if len(got) != 2+1+3+3 || got[0] != 1 || got[2] != 2 {
		t.Fatalf("%v", got)
	}
	one, three := expand([]uint32{place}, small), expand([]uint32{place}, large)
	if !slices.Equal(got[1:2], one) || !slices.Equal(got[6:9], three) || slices.Contains(got, place) || slices.Contains(got, sound) {
		t.Errorf("%v: %v and %v", got, one, three)
	}
	other := large
	other.Data = bytes.Clone(large.Data)
	other.Data[len(other.Data)-1]++
	if slices.Equal(expand([]uint32{place}, other), three) {
		t.Error("another byte is the same prompt")
	}
	for says, all := range map[string][]Medium{
		"1 placeholders for 2 image":  {small, small},
		"takes no video input":        {{Kind: infer.MediaVideo, Data: []byte("x")}},
		"not a PNG, JPEG or GIF":      {{Kind: infer.MediaImage, Data: []byte("x")}},
		"longer than the model's":     {{Kind: infer.MediaImage, Data: pngOf(t, 400, 400)}},
		"fetches over http from":      {{Kind: infer.MediaImage, URL: "https://127.0.0.1/a"}},
		"example.com is not one":      {{Kind: infer.MediaImage, URL: "http://example.com/a"}},
		"169.254.169.254 is not one":  {{Kind: infer.MediaImage, URL: "http://169.254.169.254/latest"}},
		"of no kind that this engine": {{Kind: infer.NumMediaKinds}},
	} {
		if _, err := v.Expand(t.Context(), "r", []uint32{place}, all); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	for _, prompt := range [][]uint32{{1}, {place, place}} {
		if _, err := v.Expand(t.Context(), "r", prompt, []Medium{small}); err == nil || !strings.Contains(err.Error(), "placeholders for 1 image") {
			t.Errorf("%v: %v", prompt, err)
		}
	}
	if plain := expand([]uint32{1, place}); len(plain) != 2 {
		t.Errorf("without media %v", plain)
	}
}

// A URL is fetched from this machine alone, once, within its bounds.
func TestFetch(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		switch r.URL.Path {
		case "/image":
			_, _ = w.Write([]byte("bytes"))
		case "/away":
			http.Redirect(w, r, "/image", http.StatusFound)
		case "/large":
			for chunk := make([]byte, 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	if b, err := fetch(t.Context(), "image_data", s.URL+"/image"); string(b) != "bytes" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	for path, says := range map[string]string{"/away": "status 302", "/gone": "status 404", "/large": "larger than"} {
		if _, err := fetch(t.Context(), "image_data", s.URL+path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if len(asked) != 4 {
		t.Errorf("asked for %v", asked)
	}
}

// FuzzMediaTokens: no bytes panic, and what is taken has tokens.
func FuzzMediaTokens(f *testing.F) {
	f.Add(pngOf(f, 30, 30))
	f.Add(wave(32000, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := imageTokens(b); (err == nil) != (n > 0) || n > maxImageTokens {
			t.Fatalf("%d, %v", n, err)
		}
		if n, err := waveTokens(b); (err == nil) != (n > 0) {
			t.Fatalf("%d, %v", n, err)
		}
	})
}
