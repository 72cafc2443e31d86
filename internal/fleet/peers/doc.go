// Package peers is the knowledge of several gateways in front of the same engines about each other:
// the bookings of each on the engines' ranks, and the prompts that it has sent there. It is pure:
// package peering has the sockets.
//
// A Ledger collects the updates of this gateway, as differences to earlier ones. A View holds the
// updates of the others. Neither is needed to serve a request. Without updates from another
// gateway, this one decides as if the last update still held, and after a while as if it were
// alone: its decisions become worse, but none becomes wrong.
package peers
