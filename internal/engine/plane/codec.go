package plane

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that stepCodec falls back to
	"google.golang.org/grpc/mem"

	"weir/internal/trace"
)

// stepCodec is the codec of the Steps call: it decodes a Step into a reused
// frame and leaves everything else to the usual codec.
type stepCodec struct {
	encoding.CodecV2
}

func newStepCodec() stepCodec { return stepCodec{encoding.GetCodecV2("proto")} }

// Unmarshal decodes into a frame and stamps it. A malformed frame is not an
// error here, where gRPC would turn it into a status like any other, but noted
// in the frame.
func (c stepCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	f.received = trace.Now()
	f.size = data.Len()
	// A message longer than an HTTP/2 frame comes in pieces.
	var b []byte
	if len(data) == 1 {
		b = data[0].ReadOnlyData()
	} else {
		if cap(f.scratch) < f.size {
			f.scratch = make([]byte, f.size+f.size/4)
		}
		b = f.scratch[:f.size]
		data.CopyTo(b)
	}
	f.err = f.decode(b)
	return nil
}
