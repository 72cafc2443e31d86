package model

import (
	"context"

	"weir/internal/infer"
	"weir/internal/model/chat"
)

// Reasoning says whether the answer to a chat's prompt, of which the last
// outputparse.PromptTail bytes will do, begins with reasoning.
func (m *Folder) Reasoning(prompt []byte) infer.Reasoning {
	switch open, closed := m.Format.Reasons(prompt); {
	case open:
		return infer.OpenReasoning
	case m.reasons && !closed:
		return infer.OwnReasoning
	}
	return infer.NoReasoning
}

// closesReasoning says that the model reasons unless it is told not to, which the chat
// template tells it by reasoning that has ended already.
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
