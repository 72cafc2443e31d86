package model

import "strconv"

// EffortVariable returns the variable by which the chat template reads how much to
// reason, and its value for an effort, as JSON. The name is empty where the template
// reads none. Effort "none" is no reasoning.
func (m *Folder) EffortVariable(effort string) (name, value string) {
	switch reads := m.Templates.Reads; {
	case reads("reasoning_effort"):
		return "reasoning_effort", strconv.Quote(effort)
	case reads("reasoning_strength"): // Muse Glimmer's
		return "reasoning_strength", strconv.Quote(effort)
	case reads("enable_thinking"):
		return "enable_thinking", strconv.FormatBool(effort != "none")
	case reads("thinking") && m.Format.Reasoning() != "":
		return "thinking", strconv.FormatBool(effort != "none")
	}
	return "", ""
}

// KnowsEffort reports whether the model knows an effort of that name. Models with
// harmony's syntax know three; for others no folder lists them.
func (m *Folder) KnowsEffort(effort string) bool {
	if m.Format.Reasoning() != "harmony" {
		return true
	}
	return effort == "low" || effort == "medium" || effort == "high"
}
