package prepare

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
func (q *Prepared) mediaEstimate() int64 {
	bytes := 0
	for i := range q.Request.Media {
		bytes += len(q.Request.Media[i].Data)
	}
	return int64(len(q.Request.Media))*mediaTokens - int64(bytes/4)
}

// checkPlaceholders compares the number of placeholders in the prompt with the number
// of media. With too many or too few, an image would be put in the wrong place. The
// text of a conversation may contain a placeholder, too. If the model's template writes
// a different token than its config names, the check does not apply.
func (q *Prepared) checkPlaceholders() error {
	var media, places [infer.NumMediaKinds]int
	for i := range q.Request.Media {
		media[q.Request.Media[i].Kind]++
	}
	for kind, placeholder := range q.Folder.Placeholders {
		if media[kind] == 0 {
			continue
		}
		for _, id := range q.IDs {
			if id == placeholder {
				places[kind]++
			}
		}
		if places[kind] != 0 && places[kind] != media[kind] {
			return infer.Invalid(q.Request.Fields.Prompt, "the prompt has %d placeholders (%s) for %d parts of %s; each part needs one, and the conversation's text must not spell any",
				places[kind], q.Folder.Tokenizer.TokenBytes(placeholder), media[kind], kind)
		}
	}
	return nil
}
