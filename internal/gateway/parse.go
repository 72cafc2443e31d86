package gateway

import "weir/internal/trace"

// parse is stage 11, where reasoning and tool calls will part from the answer.
// A token engine's request for either is refused at the gate, so all of its
// text is answer and passes as it is.
func (x *exchange) parse() { x.enter(trace.Parse) }
