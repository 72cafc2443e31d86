package plane

import (
	"io"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answer judges what comes before and after the messages of a call: response
// headers, then trailers; or both in one, when the call has failed at once.
type answer struct {
	began bool // the headers have come, and messages may
}

// headers processes a block of fields. An error ends the call, as in gRPC's own client:
// io.EOF if the engine reports success, and otherwise a status.
func (a *answer) headers(f *http2.MetaHeadersFrame) error {
	if f.Truncated {
		return status.Errorf(codes.Internal, "a header list of more than %d bytes", maxHeaderList)
	}
	if a.began {
		if !f.StreamEnded() {
			return status.Error(codes.Internal, "headers in the middle of the stream")
		}
		return trailers(f)
	}
	code := f.PseudoValue("status")
	if len(code) == 3 && code[0] == '1' && !f.StreamEnded() {
		return nil // informational
	}
	if kind := field(f, "content-type"); code != "200" || !isGRPC(kind) {
		return status.Errorf(statusOf(code), "the answer is not gRPC's: HTTP status %q, content type %q", code, kind)
	}
	a.began = true
	if f.StreamEnded() {
		return trailers(f)
	}
	return nil
}

// trailers returns the engine's verdict on the call.
func trailers(f *http2.MetaHeadersFrame) error {
	word := field(f, "grpc-status")
	code, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return status.Errorf(codes.Internal, "the stream ended with grpc-status %q, which is not a number", word)
	}
	if codes.Code(code) == codes.OK {
		return io.EOF
	}
	message := field(f, "grpc-message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain // what is not escaped as it should be is shown as it is
	}
	return status.Error(codes.Code(code), message)
}

func field(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.RegularFields() {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// isGRPC reports whether a content type is application/grpc, with a subtype or
// parameters or without.
func isGRPC(kind string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(kind), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// statusOf returns the gRPC code of an HTTP status, as far as it matters here. A
// proxy that cannot reach the engine, or that asks to wait, counts as no connection.
func statusOf(http string) codes.Code {
	switch http {
	case "429", "502", "503", "504":
		return codes.Unavailable
	}
	return codes.Unknown
}

// resetCode returns the code of a RST_STREAM its gRPC code, as far as it matters
// here.
func resetCode(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	}
	return codes.Internal
}
