// Package allow says what of a client's request may pass to an engine, whatever kind
// of engine it is:
//
//   - fields and headers that steer engines and not answers ([Fields]) pass only where
//     the operator allows each by its name;
//   - references to media, which an engine would fetch or open, pass as far as the
//     operator says ([Media]);
//   - of paths that weir does not serve by itself only those of a list are relayed
//     ([Paths]).
//
// It changes nothing: what may not pass is refused, by an *infer.Error that names the
// field, and the flag by which an operator allows it.
package allow
