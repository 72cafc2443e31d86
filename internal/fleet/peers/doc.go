// Package peers is what several gateways in front of the same engines know of each other:
// what each has booked on the engines' ranks, and which prompts it has sent there. It is pure:
// package peering has the sockets.
//
// A Ledger collects what this gateway tells the others, as differences to what it has told
// before. A View is what the others have told. Neither is needed for a request to be served.
// A gateway that hears nothing of another one decides as if its last word still stood, and
// after a while as if it were alone: its decisions become worse, and none becomes wrong.
package peers
