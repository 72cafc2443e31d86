package infer

// Verify is the way in which the ids of a relayed engine's streams are requested, so
// that its counts can be compared with them.
type Verify uint8

// The ways. The operator chooses for each engine whether to verify.
const (
	VerifyOff     Verify = iota // it was not asked for
	VerifyUnknown               // it was, and the engine has no known way
	VerifyVLLM                  // chats and completions
	VerifySGLang                // completions
)

// String returns what is verified, for an operator; empty for VerifyOff.
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
