package gateway

import (
	"bytes"

	"weir/internal/model/outputparse"
)

// expect notes how a chat's answer is to be read. It is called while the prompt
// and the body are still there.
func (q *prepared) expect(text []byte) {
	format, calls := q.folder.Format, q.req.Tools != nil
	if !calls {
		format = format.WithoutTools()
	}
	if guide := q.req.Guide; guide != nil {
		guide.Reasoning = q.folder.Reasoning(text[max(0, len(text)-outputparse.PromptTail):])
		guide.Whole = format.Reasoning() == "" || q.req.ForcedAny || q.req.ForcedTool != ""
	}
	if format == (outputparse.Format{}) && !calls {
		return
	}
	o := &outputparse.Options{
		Format: format, Calls: calls, Single: q.req.SingleCall, ForcedTool: q.req.ForcedTool, ForcedAny: q.req.ForcedAny,
		Prompt: bytes.Clone(text[max(0, len(text)-outputparse.PromptTail):]), Continues: q.req.ContinueFinalMessage,
	}
	switch {
	case !calls:
	case !o.ForcedAny && o.ForcedTool == "" && format.ReadsSchemas():
		o.Tools = outputparse.ReadTools(q.req.Tools)
	default:
		o.Tools = outputparse.ReadToolNames(q.req.Tools)
	}
	q.format = o
}

// keep returns the special tokens that an answer's parser must see.
func (q *prepared) keep() []uint32 {
	if o := q.format; o != nil && !o.ForcedAny && o.ForcedTool == "" {
		return q.folder.KeptTokens(o.Calls)
	}
	return nil
}

// callID makes an id for a tool call of the answer, of the form that the model's template takes
// back. It is empty if the template takes any.
func (q *prepared) callID(tool string, call int) string {
	return q.folder.CallIDs().New(tool, int(q.calls)+call)
}
