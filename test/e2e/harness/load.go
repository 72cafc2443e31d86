package harness

import (
	"sync"
	"testing"
	"time"

	"weir/internal/load"
	"weir/internal/model/tokenizer"
	"weir/internal/workload/content"
	"weir/models"
)

// SimModel is the simulated engine's model. Loading it takes a second of a busy
// machine under the race detector, so that tests share one.
var SimModel = sync.OnceValues(func() (*tokenizer.Model, error) { return tokenizer.Load(models.Sim()) })

// SimWords is the simulated engine's word list.
var SimWords = sync.OnceValues(func() (*content.Words, error) {
	m, err := SimModel()
	if err != nil {
		return nil, err
	}
	return content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
})

// Words is the simulated engine's word list.
func Words(t *testing.T) *content.Words {
	t.Helper()
	w, err := SimWords()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// RunPlan carries out a plan with every stream verified.
func RunPlan(t *testing.T, plan load.Plan) *load.Report {
	t.Helper()
	plan.Model = models.SimName
	plan.Verify = Words(t)
	plan.Timeout = 5 * time.Minute
	report, err := load.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// WantClean wants every request complete and every token there.
func WantClean(t *testing.T, r *load.Report, requests, tokens int) {
	t.Helper()
	if r.Complete != requests || r.Lost != 0 || r.ErroredShare != 0 || int(r.Tokens) != requests*tokens {
		t.Errorf("%d of %d complete, %d lost, %.1f %% errored, %d tokens of %d; %v %v",
			r.Complete, requests, r.Lost, 100*r.ErroredShare, r.Tokens, requests*tokens, r.Errors, r.Examples)
	}
}
