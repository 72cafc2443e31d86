// Package peering connects the gateways in front of the same engines. A Node serves this gateway's
// books to every gateway that follows it, and follows every gateway that it finds. Package peers
// has the content of updates, and decides what to believe of them.
//
// A Node owns these goroutines, all of which end with Run: one that sends changes, one that looks
// up addresses, and one for each address that is followed. A follower has a bounded buffer. If it
// is full, the follower misses updates, and the next full update repairs what it knows: no follower
// can hold up this gateway or the others.
package peering
