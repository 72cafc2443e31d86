package coreclient

import (
	"strconv"
	"testing"

	"weir/internal/infer"
)

// code writes a fence as its call.
type code struct{ calls []int64 }

func (c *code) AppendAborts(wire []byte, ids []string) []byte { return append(wire, 'a') }

func (c *code) AppendFence(wire []byte, call int64) []byte {
	c.calls = append(c.calls, call)
	return strconv.AppendInt(wire, call, 10)
}

// A rank that stands still keeps nobody from asking the others for a sign of life, and what
// the fence was for is known once all have answered a later one.
func TestOneRankStandsStill(t *testing.T) {
	c := &code{}
	o := NewOutbox(1<<20, c, 2)
	take := func() int {
		before := len(c.calls)
		wire, _, _ := o.Take(1)
		o.Written(wire)
		return len(c.calls) - before
	}
	g := NewGeneration(o, &infer.Request{ID: "r"}, 1, nil)
	o.Add(g, []byte("request"))
	probed := o.Probe()
	if take() != 1 {
		t.Fatal("no fence")
	}
	o.Ask()
	if take() != 0 {
		t.Error("a second fence while none has answered the first")
	}
	first := c.calls[0]
	if _, _, ok := o.Answered(first); ok {
		t.Error("one of two has answered")
	}
	if take() != 1 { // asked for while it was under way
		t.Fatal("the one that lives is not asked again")
	}
	if _, _, ok := o.Answered(first); ok || !o.Asked(c.calls[1]) {
		t.Error("the answer to the first fence ends the second")
	}
	o.Answered(c.calls[1])
	select {
	case <-probed:
		t.Error("probed, and one rank has said nothing")
	default:
	}
	f, _, ok := o.Answered(c.calls[1])
	if !ok || len(f.Adds) != 1 || f.Adds[0] != g {
		t.Errorf("%+v, %v", f, ok)
	}
	<-probed
	if o.Ask(); take() != 1 {
		t.Error("no fence afterwards")
	}
}
