package load

import (
	"fmt"
	"strconv"

	"weir/internal/wire/sse"
	"weir/internal/workload/content"
)

// judge decides whether one response is complete. It receives the events in order and the
// way in which the body ended. It knows no socket and no clock.
type judge struct {
	sample    *Sample
	words     *content.Words // nil when the text is not verified
	native    bool           // the answer is SGLang's own
	trust     bool           // the first word may follow one of the prompt's
	usage     bool           // usage was asked for
	maxTokens int            // asked for; 0 when the server chooses

	check  *content.Verifier
	keep   bool // the answer's text is kept, in answer
	answer []byte

	chunk    chunk
	reply    nativeReply
	finished bool
	fault    fault // the first of the event's faults
}

// fault is what was wrong, with a detail for people.
type fault struct {
	kind   Kind
	detail string
}

// reset makes the judge ready for another response.
func (j *judge) reset() {
	j.finished, j.fault, j.answer = false, fault{}, j.answer[:0]
	j.reply.reset()
	if j.words != nil {
		j.check = j.words.Verifier()
		if j.trust {
			j.check.Trust()
		}
	}
}

// blame keeps the first fault. An error event outranks the others, because it is the
// server's own account of the failure.
func (j *judge) blame(kind Kind, format string, args ...any) {
	if j.fault.kind == "" || (kind == KindErrorEvent && j.fault.kind != KindErrorEvent) {
		j.fault = fault{kind, fmt.Sprintf(format, args...)}
	}
}

// event takes one event or comment, received at now.
func (j *judge) event(ev sse.Event, now int64) {
	s, data := j.sample, ev.Data
	if s.Done {
		j.blame(KindAfterDone, "after [DONE]: %.80q", data)
	}
	if ev.Comment {
		return
	}
	s.Events++
	if string(data) == sse.DoneMarker {
		s.Done = true
		return
	}
	if string(ev.Name) == "error" {
		j.blame(KindErrorEvent, "%.200s", data)
		return
	}
	c := &j.chunk
	if err := j.parse(data); err != nil {
		j.blame(KindBadEvent, "event %d: %v: %.80q", s.Events, err, data)
		return
	}
	j.take(now)
	if c.failure == nil && c.choices == 0 && !c.usage {
		j.blame(KindBadEvent, "event %d has neither choices nor usage nor an error: %.80q", s.Events, data)
	}
}

// parse reads an event or a whole body in the form of the API.
func (j *judge) parse(data []byte) error {
	if j.native {
		return j.reply.parse(data, &j.chunk)
	}
	return j.chunk.parse(data)
}

// whole takes the body of a response that is not a stream.
func (j *judge) whole(data []byte, now int64) {
	j.sample.Events = 1
	if err := j.parse(data); err != nil {
		j.blame(KindBadEvent, "the body: %v: %.80q", err, data)
		return
	}
	j.take(now)
	j.sample.Done = true // a whole body needs no end marker
	if j.chunk.failure == nil && j.chunk.choices == 0 {
		j.blame(KindBadEvent, "the body has no choices: %.80q", data)
	}
}

// take records the content of the parsed chunk.
func (j *judge) take(now int64) {
	s, c := j.sample, &j.chunk
	if c.failure != nil {
		j.blame(KindErrorEvent, "%s", describe(c))
		return
	}
	if c.usage {
		s.HasUsage, s.PromptTokens, s.CompletionTokens, s.CachedTokens = true, c.promptTokens, c.completedTokens, c.cachedTokens
	}
	if j.native {
		s.Server = j.reply.times
		if err := j.reply.rewritten; err != "" {
			j.blame(KindText, "%s", err)
		}
	}
	if c.index > 0 || c.choices > 1 {
		j.blame(KindBadEvent, "a second choice, which was not asked for")
		return
	}
	if len(c.text) > 0 || c.other {
		if j.finished {
			j.blame(KindAfterFinish, "content after finish_reason %q: %.40q", s.FinishReason, c.text)
		}
		j.content(now)
	}
	if len(c.finish) > 0 {
		if j.finished {
			j.blame(KindAfterFinish, "a second finish_reason %q", c.finish)
		}
		j.finished, s.FinishReason = true, reasonName(c.finish)
	}
}

// content books content received at now.
func (j *judge) content(now int64) {
	s := j.sample
	s.content(now, len(j.chunk.text) > 0)
	if len(j.chunk.text) == 0 {
		if j.check == nil {
			s.Tokens++
		}
		return
	}
	if j.keep {
		j.answer = append(j.answer, j.chunk.text...)
	}
	if j.check == nil {
		s.Tokens++
		return
	}
	// A mismatch is judged at the end, together with the counts that show its cause.
	_, _ = j.check.Write(j.chunk.text)
	s.Tokens = j.check.Words() + 1 // the last word is open until the next begins
}

// reasonName returns a finish_reason as a string without allocating for those
// there usually are.
func reasonName(b []byte) string {
	switch string(b) {
	case "stop":
		return "stop"
	case "length":
		return "length"
	}
	return string(b)
}

// describe returns an error object in words.
func describe(c *chunk) string {
	if len(c.message) == 0 {
		return fmt.Sprintf("%.200s", c.failure)
	}
	if len(c.code) > 0 {
		return fmt.Sprintf("%s: %.200s", c.code, c.message)
	}
	return fmt.Sprintf("%.200s", c.message)
}

// end judges a body that reached its proper end; partial reports that the end was inside an
// event.
func (j *judge) end(partial bool) {
	s := j.sample
	var broken error
	if j.check != nil {
		broken = j.check.Close()
		s.Tokens = j.check.Words()
	} else if s.HasUsage {
		s.Tokens = s.CompletionTokens
	}
	switch {
	case partial && s.Done:
		j.blame(KindAfterDone, "after [DONE]: an event that is not whole")
	case partial:
		j.blame(KindPartialEvent, "the body ended inside an event")
	}
	if k := j.fault.kind; k == KindErrorEvent || k == KindBadEvent || k == KindPartialEvent {
		s.fail(k, j.fault.detail)
		return
	}
	if !s.Done {
		s.fail(KindNoDone, fmt.Sprintf("the body ended after %d events without [DONE]", s.Events))
		return
	}
	// From here on the server has claimed that the answer is complete.
	if !j.finished {
		j.blame(KindNoFinish, "no finish_reason")
	}
	if j.usage && !s.HasUsage {
		j.blame(KindNoUsage, "usage was asked for and did not come")
	}
	if j.check != nil {
		j.count(s.Tokens, broken)
	}
	if j.fault.kind == "" {
		s.Outcome = Complete
		return
	}
	s.Outcome, s.Kind, s.Detail = Corrupt, j.fault.kind, j.fault.detail
}

// count compares the number of words of verified text with the expected one, and determines
// why they differ.
func (j *judge) count(words int, broken error) {
	s := j.sample
	full := 0 // what an answer that ended for its length must have
	if s.FinishReason == "length" {
		full = j.maxTokens
	}
	expected := full
	if s.HasUsage {
		expected = s.CompletionTokens
	}
	if expected == 0 && !s.HasUsage {
		if broken != nil {
			j.blame(KindText, "%v", broken)
		}
		return
	}
	// A sound text of full length contradicts a usage with another count. A usage that
	// agrees with a text that is too short shows only that the loss happened before the
	// counting.
	if broken == nil && full > 0 && words == full && words != expected {
		j.blame(KindUsage, "usage says %d tokens, the text has %d as asked", expected, words)
		return
	}
	expected = max(expected, full)
	// Some engines count the end id, which has no text.
	if s.FinishReason == "stop" && broken == nil && words == expected-1 {
		return
	}
	switch {
	case words < expected:
		s.Lost = expected - words
		j.blame(KindLost, "%d of %d tokens missing%s", s.Lost, expected, because(broken))
	case words > expected && broken != nil:
		j.blame(KindDuplicated, "%d tokens where %d were generated%s", words, expected, because(broken))
	case words > expected:
		j.blame(KindUsage, "usage says %d tokens, the text has %d", expected, words)
	case broken != nil:
		j.blame(KindOrder, "%v", broken)
	}
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// refuse gives the verdict on a response with another status than 200.
func (j *judge) refuse(status int, body []byte) {
	detail := fmt.Sprintf("%.200q", body)
	if j.chunk.parse(body) == nil && j.chunk.failure != nil {
		detail = describe(&j.chunk)
	}
	j.sample.fail(KindStatus+Kind("_"+strconv.Itoa(status)), detail)
}
