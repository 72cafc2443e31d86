// Package report turns the results of a load test into files: a row for each request, with
// the stamps of client, gateway and engine under the timeline's names, as CSV and as JSON
// lines.
//
// A [Book] gathers the requests of a run and their records in the gateway's timeline
// ([Book.Follow]), and returns the [Row]s when the run is over. The columns of a row have
// the same meaning with and without a gateway: without one the client takes its place, so
// that arrival_time and to_server_time are the client's own sending. Missing stamps stay
// empty.
//
// All times are nanoseconds on the client's CLOCK_MONOTONIC. Stamps of other clocks are
// converted ([Offset]). A process on the same boot has the same clock. For another machine,
// the sending and the answer of each request bound the possible offset.
package report
