// Package workload says what is asked of an engine and when: arrival processes,
// and requests read from a trace or drawn from distributions.
//
// Everything here is a pure function of its input and a seed. Times are
// absolute offsets from the start of the run, decided before anything is sent:
// they know nothing of workers, clocks or answers, so a generator that falls
// behind is late, and never sends less than it was asked for.
//
// # Arrivals
//
// A [Schedule] gives the arrivals of an open loop: equal gaps, a Poisson
// process, or gaps of a gamma distribution (burstiness), at a [Rate] that is
// constant, a ramp or steps. A closed loop has no schedule, because its
// arrivals follow from the answers. [Describe] and [Dispersion] say what a
// process was like once it is realised.
//
// # Requests
//
// A [Source] gives requests in the order of their arrival, one at a time, so a
// trace is never held in memory. [NewTrace] reads a trace in Mooncake's, Azure's
// or BurstGPT's form, and [NewSynthetic] makes a workload of a description, with
// lengths drawn from distributions or texts in ShareGPT's form. What a file says
// wrongly is an [*Error] with file, line and field.
//
// A trace has no texts. A [Request] therefore tells its prompt as parts, each
// with a key: [Request.AppendPrompt] turns them into ids, and the same key
// gives the same ids, so two prompts share a beginning exactly where their
// trace says so.
package workload
