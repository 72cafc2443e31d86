package gateway

import (
	"weir/internal/infer"
)

// mediaTokens is what a part of media is taken for where tokens in flight are
// counted: what it has is known to the engine alone, once it has looked at it. An
// image of a million pixels has about so many at models with patches of 28 by 28
// or 32 by 32 pixels.
const mediaTokens = 1024

// takeMedia notes what a request holds besides text, and says by how much it
// changes the estimate of its tokens, in which each byte of the body counts.
func (x *exchange) takeMedia() int64 {
	x.hasMedia = len(x.req.Media) > 0
	bytes := 0
	for i := range x.req.Media {
		bytes += len(x.req.Media[i].Data)
	}
	return int64(len(x.req.Media))*mediaTokens - int64(bytes/4)
}

// checkPlaceholders compares the placeholders in the prompt with the media. Too
// many or too few would put an image into another's place, or none in some; text
// of the conversation may spell one, too. Where the model's template writes
// another token than the one that its config names, there is nothing to compare.
func (x *exchange) checkPlaceholders() error {
	var media, places [infer.NumMediaKinds]int
	for i := range x.req.Media {
		media[x.req.Media[i].Kind]++
	}
	for kind, placeholder := range x.folder.Placeholders {
		if media[kind] == 0 {
			continue
		}
		for _, id := range x.ids {
			if id == placeholder {
				places[kind]++
			}
		}
		if places[kind] != 0 && places[kind] != media[kind] {
			return infer.Invalid(x.req.Fields.Prompt, "the prompt has %d placeholders (%s) for %d parts of %s; each part needs one, and the conversation's text must not spell any",
				places[kind], x.folder.Tokenizer.TokenBytes(placeholder), media[kind], kind)
		}
	}
	return nil
}
