package dialect

import "weir/internal/infer"

// transferParams is the field, of vLLM's bodies and answers, by which the halves of a
// request find each other.
const transferParams = "kv_transfer_params"

// Half makes the body that of one half of a pair. It overwrites whatever the caller sent in
// the fields by which the halves find each other. It returns false at a path whose bodies
// have no known way to ask a prefill engine for the prompt alone.
func (a *Asked) Half(h *infer.Half, path string) bool {
	if h.Params == nil {
		a.Delete(transferParams)
		return true
	}
	a.Set(transferParams, string(h.Params))
	return h.Role != infer.RolePrefill || a.FirstID(path)
}

// PrefillAnswer reads the answer of a prefill half, which is not streamed. It returns the
// usage, if the answer states one, and kv_transfer_params, which are nil if there are none
// and otherwise a part of the answer's bytes.
func PrefillAnswer(answer []byte) (u infer.Usage, stated bool, params []byte) {
	at := SkipSpace(answer, 0)
	end, _, ok := CheckJSON(answer, at)
	if !ok || answer[at] != '{' {
		return u, false, nil
	}
	_ = Members(answer[at:end], func(name, value []byte) error {
		switch string(name) {
		case "usage":
			if said, ok := ParseUsage(value); ok {
				u, stated = said, true
			}
		case transferParams:
			params = nil
			if KindOf(value) == '{' {
				params = value
			}
		}
		return nil
	})
	return u, stated, params
}
