package prepare

import (
	"bytes"

	"weir/internal/model/outputparse"
)

// expect notes how a chat's answer is to be read. It is called while the prompt
// and the body are still there.
func (q *Prepared) expect(text []byte) {
	format, calls := q.Folder.Format, q.Request.Tools != nil
	if !calls {
		format = format.WithoutTools()
	}
	if guide := q.Request.Guide; guide != nil {
		guide.Reasoning = q.Folder.Reasoning(text[max(0, len(text)-outputparse.PromptTail):])
		guide.Whole = format.Reasoning() == "" || q.Request.ForcedAny || q.Request.ForcedTool != ""
	}
	if format == (outputparse.Format{}) && !calls {
		return
	}
	o := &outputparse.Options{
		Format: format, Calls: calls, Single: q.Request.SingleCall, ForcedTool: q.Request.ForcedTool, ForcedAny: q.Request.ForcedAny,
		Prompt: bytes.Clone(text[max(0, len(text)-outputparse.PromptTail):]), Continues: q.Request.ContinueFinalMessage,
	}
	switch {
	case !calls:
	case !o.ForcedAny && o.ForcedTool == "" && format.ReadsSchemas():
		o.Tools = outputparse.ReadTools(q.Request.Tools)
	default:
		o.Tools = outputparse.ReadToolNames(q.Request.Tools)
	}
	q.Format = o
}

// Keep returns the special tokens that an answer's parser must see.
func (q *Prepared) Keep() []uint32 {
	if o := q.Format; o != nil && !o.ForcedAny && o.ForcedTool == "" {
		return q.Folder.KeptTokens(o.Calls)
	}
	return nil
}

// CallID makes an id for a tool call of the answer, of the form that the model's template takes
// back. It is empty if the template takes any.
func (q *Prepared) CallID(tool string, call int) string {
	return q.Folder.CallIDs().New(tool, int(q.calls)+call)
}
