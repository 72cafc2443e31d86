package infer

// Verify states how the ids of a relayed engine's streams can be asked for, so that its
// counts are held against them.
type Verify uint8

// The ways. Whether one is used is the operator's choice, for each engine.
const (
	VerifyOff     Verify = iota // it was not asked for
	VerifyUnknown               // it was, and the engine is none that is known to have a way
	VerifyVLLM                  // chats and completions
	VerifySGLang                // completions
)

// String reports what is verified, for an operator; nothing where it was not asked for.
func (v Verify) String() string {
	switch v {
	case VerifyUnknown:
		return "nothing: it is neither vLLM nor SGLang"
	case VerifyVLLM:
		return "ids of streamed chats and completions"
	case VerifySGLang:
		return "ids of streamed completions"
	}
	return ""
}
