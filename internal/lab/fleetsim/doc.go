// Package fleetsim replays a workload through several simulated engines on virtual
// time, with the real packages deciding which of them gets a request: balance, cost
// and kvindex. None of these knows it, and neither does the simulator.
//
// It answers what no engine alone shows: which policy, how many engines, of which
// speeds, what a failure costs, what it costs that gateways and engines tell each other
// late. An oracle, which sees what is true of every engine, says how much there was to
// be had.
//
// A run is a function of its options: no clock, goroutine or socket takes part.
package fleetsim
