// Package fleetsim replays a workload through several simulated engines on virtual time.
// The real packages balance, cost, kvindex and place decide which engine gets a request. None of
// them knows about fleetsim, and neither does the simulator.
//
// It answers questions that a single engine cannot: which policy, how many engines and of
// which speeds, the cost of a failure, and the cost of late information between gateways
// and engines. An oracle, which knows the true state of every engine, shows how much could
// be gained.
//
// A run is a function of its options: it uses no clock, goroutine or socket.
package fleetsim
