package engine

import "weir/internal/infer"

// WantWhole refuses requests over a wire that has no legs to an engine that takes
// nothing else.
func (e *Engine) WantWhole() error {
	if e.opts.Role == infer.RoleBoth {
		return nil
	}
	return infer.Invalid("", "this engine has the role %s, and takes one half of requests only; this wire has no halves: use sglang or vllm", e.opts.Role)
}
