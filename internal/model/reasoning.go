package model

import (
	"context"

	"weir/internal/infer"
	"weir/internal/model/chat"
)

// Reasoning reports whether the answer to a chat's prompt begins with reasoning. The
// last outputparse.PromptTail bytes of the prompt suffice.
func (m *Folder) Reasoning(prompt []byte) infer.Reasoning {
	switch open, closed := m.Format.Reasons(prompt); {
	case open:
		return infer.OpenReasoning
	case m.reasons && !closed:
		return infer.OwnReasoning
	}
	return infer.NoReasoning
}

// closesReasoning reports whether the model reasons by default and the chat template
// disables it by reasoning that has already ended.
func (m *Folder) closesReasoning() bool {
	closed := func(kwargs string) bool {
		text, err := m.RenderChat(context.Background(), &chat.Input{
			Messages: []byte(`[{"role":"user","content":"hi"}]`), Kwargs: []byte(kwargs), AddGenerationPrompt: true, FromAPI: true,
		})
		if err != nil {
			return false
		}
		_, closed := m.Format.Reasons(text)
		return closed
	}
	return closed(`{"enable_thinking":false,"thinking":false}`) && !closed(`{}`)
}
