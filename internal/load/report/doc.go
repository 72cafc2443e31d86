// Package report turns what a load test saw into files: a row for each request,
// with the stamps of client, gateway and engine under the timeline's names, as
// CSV and as JSON lines.
//
// A [Book] gathers the requests of a run, and what the gateway's timeline says
// of them ([Book.Follow]), and gives the [Row]s once the run is over. A row's
// columns have the same meaning whether a gateway was in the path or not: where
// there was none, the client stands for it, so that arrival_time and
// to_server_time are the client's own sending. A stamp that nobody gave stays
// empty.
//
// All times are nanoseconds on the client's CLOCK_MONOTONIC. Stamps of another
// clock are brought onto it ([Offset]): a machine of the same boot has the same
// clock, and of any other the offset lies between what each request's sending
// and answer leave possible.
package report
