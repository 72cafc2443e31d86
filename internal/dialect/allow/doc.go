// Package allow decides which parts of a client's request may pass to an engine,
// whatever its kind:
//
//   - fields and headers that steer engines and not answers ([Fields]) pass only if the operator
//     allows each by its name;
//   - references to media, which an engine would fetch or open, pass as far as the operator allows
//     ([Media]);
//   - paths that weir does not serve by itself are relayed only if a list has them ([Paths]).
//
// A request is never changed: it is refused, by an *infer.Error that names the field
// and the flag by which an operator allows it.
package allow
