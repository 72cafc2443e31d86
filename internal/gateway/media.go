package gateway

import (
	"weir/internal/infer"
)

// mediaTokens is the assumed number of tokens of a media part, for the count of tokens
// in flight. Only the engine knows the number, after it has processed the part. An
// image of a million pixels has about so many at models with patches of 28 by 28 or 32
// by 32 pixels.
const mediaTokens = 1024

// mediaEstimate returns by how much what a request holds besides text changes the
// estimate of its tokens, in which each byte of the body counts.
func (q *prepared) mediaEstimate() int64 {
	bytes := 0
	for i := range q.req.Media {
		bytes += len(q.req.Media[i].Data)
	}
	return int64(len(q.req.Media))*mediaTokens - int64(bytes/4)
}

// checkPlaceholders compares the number of placeholders in the prompt with the number
// of media. With too many or too few, an image would be put in the wrong place. The
// text of a conversation may contain a placeholder, too. If the model's template writes
// a different token than its config names, the check does not apply.
func (q *prepared) checkPlaceholders() error {
	var media, places [infer.NumMediaKinds]int
	for i := range q.req.Media {
		media[q.req.Media[i].Kind]++
	}
	for kind, placeholder := range q.folder.Placeholders {
		if media[kind] == 0 {
			continue
		}
		for _, id := range q.ids {
			if id == placeholder {
				places[kind]++
			}
		}
		if places[kind] != 0 && places[kind] != media[kind] {
			return infer.Invalid(q.req.Fields.Prompt, "the prompt has %d placeholders (%s) for %d parts of %s; each part needs one, and the conversation's text must not spell any",
				places[kind], q.folder.Tokenizer.TokenBytes(placeholder), media[kind], kind)
		}
	}
	return nil
}
