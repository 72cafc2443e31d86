// Package workload defines what an engine is asked for and when: arrival processes, and
// requests read from a trace or drawn from distributions.
//
// Everything here is a pure function of its input and a seed. Times are absolute offsets
// from the start of the run, decided before anything is sent. They do not depend on
// workers, clocks or answers, so a generator that falls behind is late, but does not send
// less.
//
// # Arrivals
//
// A [Schedule] returns the arrivals of an open loop: equal gaps, a Poisson process, or gaps
// of a gamma distribution (burstiness), at a [Rate] that is constant, a ramp or steps. A
// closed loop has no schedule, because its arrivals follow from the answers. [Describe] and
// [Dispersion] characterise a realised process.
//
// # Requests
//
// A [Source] returns requests in the order of their arrival, one at a time, so a trace is
// never held in memory. [NewTrace] reads a trace in the form of Mooncake, Azure or
// BurstGPT, and [NewSynthetic] makes a workload from a description, with lengths drawn from
// distributions or texts in ShareGPT's form. A fault in a file is an [*Error] with file,
// line and field.
//
// A trace has no texts. Therefore a [Request] describes its prompt as parts, each with a
// key. [Request.AppendPrompt] turns them into ids, and the same key gives the same ids, so
// two prompts share a prefix exactly if they do in the trace.
package workload
