package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"weir/test/e2e/harness"
)

// raw passes messages of gRPC as bytes.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) {
	return *v.(*[]byte), nil
}
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// message writes a message of protobuf: numbers and texts by the numbers of their fields, and
// fields that only a later version knows.
func message(fields map[protowire.Number]any) (m []byte) {
	for number, value := range fields {
		switch v := value.(type) {
		case int:
			m = protowire.AppendVarint(protowire.AppendTag(m, number, protowire.VarintType), uint64(v))
		case string:
			m = protowire.AppendString(protowire.AppendTag(m, number, protowire.BytesType), v)
		case []byte:
			m = protowire.AppendBytes(protowire.AppendTag(m, number, protowire.BytesType), v)
		}
	}
	m = protowire.AppendVarint(protowire.AppendTag(m, 1000, protowire.VarintType), 7)
	m = protowire.AppendString(protowire.AppendTag(m, 1001, protowire.BytesType), "of a later version")
	return protowire.AppendFixed64(protowire.AppendTag(m, 17, protowire.Fixed64Type), 1)
}

// has reports whether a message has a field that holds a text.
func has(m []byte, field protowire.Number, text string) bool {
	for len(m) > 0 {
		number, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return false
		}
		m = m[n:]
		if n = protowire.ConsumeFieldValue(number, kind, m); n < 0 {
			return false
		}
		if number == field && kind == protowire.BytesType {
			if value, _ := protowire.ConsumeBytes(m); string(value) == text || has(value, 1, text) {
				return true
			}
		}
		m = m[n:]
	}
	return false
}

// laterPeer is a gateway of a later version: its messages have a higher version, and fields that
// nobody knows yet. It reports some requests under way at the engine "one".
func laterPeer(t *testing.T, addr string, underWay int) (asked <-chan []byte) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan []byte, 1)
	s := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "weir.peers.v1.Peers", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: "Follow", ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			var request []byte
			if err := stream.RecvMsg(&request); err != nil {
				return err
			}
			select {
			case requests <- request:
			default:
			}
			for n := 1; ; n++ {
				// Protocol 9, a full update.
				u := message(map[protowire.Number]any{1: "the later one", 2: 9, 3: n, 4: 1, 5: message(map[protowire.Number]any{1: "one", 2: 1, 4: underWay, 5: underWay, 6: 100}),
					6: message(map[protowire.Number]any{1: "one", 2: 1, 4: []byte("eight by")})})
				if err := stream.SendMsg(&u); err != nil {
					return err
				}
				select {
				case <-stream.Context().Done():
					return nil
				case <-time.After(200 * time.Millisecond):
				}
			}
		}}}}, struct{}{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return requests
}

// A gateway of a later version is followed, and follows: what both versions know passes in both
// directions, and what only it knows changes nothing.
func TestPeersLater(t *testing.T) {
	harness.Beside(t, harness.Light)
	engine := harness.StartSim(t)
	own, its := harness.FreeAddress(t), harness.FreeAddress(t)
	asked := laterPeer(t, its, 3)
	g := harness.StartGateway(t, "serve", "--peers", own+","+its, "--peer-listen", own, "--engine", engine.Spec("plane")+",name=one")
	harness.Eventually(t, "the later gateway is followed", func() bool { return harness.Metric(t, g.Admin, "weir_peers", `state="followed"`) == 1 })
	harness.Eventually(t, "its requests count", func() bool {
		var engines []struct {
			Books struct {
				Others int `json:"others_in_flight"`
			}
		}
		if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil || len(engines) != 1 {
			t.Fatalf("%v: %d engines", err, len(engines))
		}
		return engines[0].Books.Others == 3
	})
	if shown := string(harness.Get(t, g.Admin+"/peers").Body); !strings.Contains(shown, `"the later one"`) || !strings.Contains(shown, `"followed"`) {
		t.Errorf("shown: %s", shown)
	}
	select {
	case request := <-asked:
		if len(request) == 0 {
			t.Errorf("asked by %x", request)
		}
	default:
		t.Error("the gateway has not asked")
	}

	// It follows this gateway, with fields of its own in the request.
	conn, err := grpc.NewClient(own, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(harness.Context(t), time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/weir.peers.v1.Peers/Follow")
	request := message(map[protowire.Number]any{1: 9, 2: "the later one"})
	if err := errors.Join(err, stream.SendMsg(&request), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(g.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":9000,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for found := false; !found; {
		var u []byte
		if err := stream.RecvMsg(&u); err != nil {
			t.Fatalf("no update tells of the request at engine one: %v", err)
		}
		found = has(u, 5, "one")
	}
	if err := func() error { // a call that only a later version has
		other, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/weir.peers.v1.Peers/FollowMore")
		if err != nil {
			return err
		}
		var u []byte
		return errors.Join(other.SendMsg(&request), other.CloseSend(), other.RecvMsg(&u))
	}(); err == nil || !strings.Contains(err.Error(), "unknown method FollowMore") {
		t.Errorf("an unknown call ends with %v", err)
	}
	harness.WantComplete(t, harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"stream":true,"max_tokens":2}`, "b")))
}
