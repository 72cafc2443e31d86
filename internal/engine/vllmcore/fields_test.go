package vllmcore

import (
	"testing"

	"weir/internal/engine/enginetest"
	"weir/internal/infer"
)

func TestFields(t *testing.T) {
	o := &Options{EndIDs: []uint32{2}}
	enginetest.Fields(t, "../../../docs/engines.md", "vllm-core", func(req *infer.Request) ([]byte, *infer.Error) {
		if bad := check(req, o, carriesNumbers|carriesGuides|infer.CarriesPriority); bad != nil {
			return nil, bad
		}
		return appendAdd(nil, req, nil, nil, o, 1), nil
	})
}
