package vllmcore

import (
	"regexp/syntax"
	"slices"

	"weir/internal/infer"
)

// speaks reports whether a guide excludes the empty text. An answer without text then
// shows that the engine does not accept the guide. A guide that is found invalid here
// is an error.
func speaks(g *infer.Guide) (bool, *infer.Error) {
	if g == nil {
		return false, nil
	}
	switch g.Kind {
	case infer.GuideChoice:
		return !slices.Contains(g.Choices, ""), nil
	case infer.GuideRegex:
		// The engine's language of them is Rust's, to which ours is the nearest.
		re, err := syntax.Parse(g.Text, syntax.Perl)
		if err != nil {
			return false, infer.Errorf(infer.CodeInvalid, "the regular expression for the output cannot be read: %v", err)
		}
		return !matchesEmpty(re), nil
	case infer.GuideStructuralTag:
		return false, nil // its schema holds within the text, where a tag begins
	}
	return true, nil
}

// matchesEmpty reports whether the empty text matches.
func matchesEmpty(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpNoMatch, syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return matchesEmpty(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || matchesEmpty(re.Sub[0])
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !matchesEmpty(sub) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, matchesEmpty)
	}
	return true
}
