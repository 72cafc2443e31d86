package vocab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // what images it reads
	_ "image/jpeg"
	_ "image/png"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"weir/internal/dialect/media"
	"weir/internal/infer"
)

// The engine treats media as a vision model's front end does: an image's size determines
// its number of tokens, and they replace its placeholder in the prompt. The ids follow from
// a hash of all its bytes, like the ids that stand for an image at real engines. So the
// output, the prefix cache, KV and usage depend on every byte, and the core need not know
// about media.
const (
	patch          = 28      // pixels, square, of a token of an image
	maxImageTokens = 1 << 14 // about 3,500 by 3,500 pixels
	audioTokens    = 25      // of a second of audio
)

// Bounds of a fetch, which may only reach this machine.
const (
	maxFetch     = 32 << 20
	fetchTimeout = 5 * time.Second
)

// Medium is an image or a piece of audio as a server received it: its bytes, or a
// URL.
type Medium struct {
	Kind      infer.MediaKind
	URL       string
	MediaType string // of data, where it was said
	Data      []byte
}

// MediumOf decodes what came as text.
func MediumOf(m *infer.Media) (Medium, error) {
	out := Medium{Kind: m.Kind, URL: m.URL, MediaType: m.Type}
	var err error
	if m.URL == "" {
		out.Data, err = media.Bytes(m)
	}
	return out, err
}

// Seen describes media that the engine received and decoded.
type Seen struct {
	Request string `json:"request_id,omitempty"`
	Kind    string `json:"kind"`
	URL     string `json:"url,omitempty"`
	Type    string `json:"media_type,omitempty"`
	Bytes   int    `json:"bytes"`
	SHA256  string `json:"sha256"`
	Tokens  int    `json:"tokens"`
}

// keepSeen bounds the media that are remembered.
const keepSeen = 256

// Seen returns the media that were looked at last, the latest last.
func (v *Vocab) Seen() []Seen {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	return slices.Clone(v.seen)
}

func (v *Vocab) note(all []Seen) {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	v.seen = append(v.seen, all...)
	v.seen = slices.Delete(v.seen, 0, max(0, len(v.seen)-keepSeen))
}

// MediaCarries returns the kinds of media that the engine accepts: those for which its
// model has a placeholder, except video.
func (v *Vocab) MediaCarries() (c infer.Carries) {
	for kind := range v.placeholders {
		if kind != infer.MediaVideo {
			c |= kind.Carries()
		}
	}
	return c
}

// Expanded is a prompt with the tokens of its media in it.
type Expanded struct {
	IDs    []uint32
	Tokens [infer.NumMediaKinds]int
}

// Expand puts media into the places that a prompt has for them.
func (v *Vocab) Expand(ctx context.Context, request string, prompt []uint32, all []Medium) (Expanded, error) {
	if len(all) == 0 {
		return Expanded{IDs: prompt}, nil
	}
	var byKind [infer.NumMediaKinds][][]uint32
	var out Expanded
	var seen []Seen
	size := len(prompt)
	for i := range all {
		m := &all[i]
		if m.Kind >= infer.NumMediaKinds {
			return out, infer.Invalid("media", "media[%d] is of no kind that this engine knows", i)
		}
		if v.MediaCarries()&m.Kind.Carries() == 0 {
			return out, infer.Invalid(m.Kind.String()+"_data", "this simulated engine takes no %s input; it takes %s", m.Kind, v.takes())
		}
		ids, saw, err := v.look(ctx, m)
		if err != nil {
			return out, err
		}
		saw.Request = request
		seen = append(seen, saw)
		byKind[m.Kind] = append(byKind[m.Kind], ids)
		out.Tokens[m.Kind] += len(ids)
		if size += len(ids) - 1; size >= v.o.ContextLength {
			return out, infer.Errorf(infer.CodeContext, "The input (%d tokens with its media) is longer than the model's context length (%d tokens).", size, v.o.ContextLength)
		}
	}
	out.IDs = make([]uint32, 0, max(size, 0))
	var used [infer.NumMediaKinds]int
next:
	for _, id := range prompt {
		for kind, placeholder := range v.placeholders {
			if id != placeholder {
				continue
			}
			if n := used[kind]; n < len(byKind[kind]) {
				out.IDs = append(out.IDs, byKind[kind][n]...)
			}
			used[kind]++
			continue next
		}
		out.IDs = append(out.IDs, id)
	}
	for kind := range used {
		if want := len(byKind[kind]); used[kind] != want {
			name := infer.MediaKind(kind).String()
			return out, infer.Invalid(name+"_data", "the prompt has %d placeholders for %d %s inputs", used[kind], want, name)
		}
	}
	v.note(seen)
	return out, nil
}

func (v *Vocab) takes() string {
	if c := v.MediaCarries(); c != 0 {
		return c.String() + " and text"
	}
	return "text only, as its model's config.json names no image_token_id and no audio_token_id"
}

// look returns the ids that stand for a piece of media.
func (v *Vocab) look(ctx context.Context, m *Medium) (ids []uint32, saw Seen, err error) {
	field := m.Kind.String() + "_data"
	b := m.Data
	if m.URL != "" {
		if b, err = fetch(ctx, field, m.URL); err != nil {
			return nil, saw, err
		}
	}
	n := 0
	if m.Kind == infer.MediaImage {
		n, err = imageTokens(b)
	} else {
		n, err = waveTokens(b)
	}
	if err != nil {
		return nil, saw, infer.Invalid(field, "%s cannot be read: %v", field, err)
	}
	sum := sha256.Sum256(b)
	ids = make([]uint32, n)
	words := v.o.Words
	state := binary.BigEndian.Uint64(sum[:])
	for i := range ids {
		state += 0x9e3779b97f4a7c15 // SplitMix64
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		ids[i] = words.ID(int((z ^ z>>31) % uint64(words.Len())))
	}
	return ids, Seen{Kind: m.Kind.String(), URL: m.URL, Type: m.MediaType, Bytes: len(b), SHA256: hex.EncodeToString(sum[:]), Tokens: n}, nil
}

// imageTokens is how many tokens an image is: its patches of 28 by 28 pixels,
// those at its edges counted whole.
func imageTokens(b []byte) (int, error) {
	c, format, err := image.DecodeConfig(bytes.NewReader(b))
	if err != nil {
		return 0, fmt.Errorf("it is not a PNG, JPEG or GIF (%w)", err)
	}
	if c.Width < 1 || c.Height < 1 {
		return 0, fmt.Errorf("a %s of %d by %d pixels", format, c.Width, c.Height)
	}
	wide, high := (c.Width-1)/patch+1, (c.Height-1)/patch+1
	if wide > maxImageTokens || high > maxImageTokens || wide*high > maxImageTokens {
		return 0, fmt.Errorf("a %s of %d by %d pixels is more than %d tokens of %d by %d; make it smaller", format, c.Width, c.Height, maxImageTokens, patch, patch)
	}
	return wide * high, nil
}

// waveTokens is how many tokens a WAVE file is: 25 a second, the last begun one
// counted whole.
func waveTokens(b []byte) (int, error) {
	if len(b) < 12 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WAVE" {
		return 0, errors.New("it is not a WAVE file, the only audio that this simulated engine reads")
	}
	rate := uint64(0) // bytes a second
	for b = b[12:]; len(b) >= 8; {
		name, size := string(b[:4]), uint64(binary.LittleEndian.Uint32(b[4:]))
		switch b = b[8:]; {
		case name == "data" && rate > 0:
			// A stream's file may say more than there is.
			size = min(size, uint64(len(b)))
			if size == 0 {
				return 0, errors.New("the WAVE file holds no sound")
			}
			return int((size*audioTokens-1)/rate + 1), nil
		case size > uint64(len(b)):
			return 0, fmt.Errorf("the WAVE file ends within its chunk %q", name)
		case name == "fmt " && size >= 16:
			rate = uint64(binary.LittleEndian.Uint32(b[8:]))
		}
		b = b[min(size+size%2, uint64(len(b))):]
	}
	return 0, errors.New("the WAVE file has no format before its sound, or no sound")
}

var errElsewhere = errors.New("not a loopback address")

// fetch reads the content of a URL. It reaches no other machine, because the address was
// chosen by a client.
func fetch(ctx context.Context, field, ref string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref, nil)
	if err != nil || req.URL.Scheme != "http" {
		return nil, infer.Invalid(field, "%s: this simulated engine fetches over http from loopback addresses only; send the data itself", field)
	}
	dialer := net.Dialer{}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		if host == "localhost" {
			host = "127.0.0.1"
		}
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
			return nil, errElsewhere
		}
		return dialer.DialContext(ctx, network, net.JoinHostPort(host, port))
	}}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, errElsewhere):
		return nil, infer.Invalid(field, "%s: this simulated engine fetches over http from loopback addresses only, and %s is not one; send the data itself", field, req.URL.Hostname())
	case err != nil:
		return nil, infer.Invalid(field, "%s: the URL cannot be fetched: %v", field, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, infer.Invalid(field, "%s: the URL answers with status %d", field, resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxFetch+1))
	if err != nil {
		return nil, infer.Invalid(field, "%s: the URL cannot be fetched: %v", field, err)
	}
	if len(b) > maxFetch {
		return nil, infer.Invalid(field, "%s: the file at the URL is larger than %d bytes", field, maxFetch)
	}
	return b, nil
}
