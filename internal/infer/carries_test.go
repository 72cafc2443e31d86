package infer

import "testing"

// The needs of requests. A seed needs nothing if nothing is drawn.
func TestNeeds(t *testing.T) {
	seed, zero, half, one, forty := int64(7), 0.0, 0.5, 1, 40
	for _, c := range []struct {
		name string
		req  Request
		want Carries
	}{
		{"nothing", Request{IgnoreEOS: true, StopIDs: []uint32{1}, Sampling: Sampling{Temperature: &half, TopP: &half, TopK: &forty}}, 0},
		{"min_tokens", Request{MinTokens: 1}, CarriesMinTokens},
		{"seed", Request{Sampling: Sampling{Seed: &seed, Temperature: &half, TopK: &forty}}, CarriesSeed},
		{"seed at temperature 0", Request{Sampling: Sampling{Seed: &seed, Temperature: &zero}}, 0},
		{"seed with one candidate", Request{Sampling: Sampling{Seed: &seed, TopK: &one}}, 0},
		{"choice", Request{Guide: &Guide{Kind: GuideChoice}}, CarriesChoice},
	} {
		if got := c.req.Needs(); got != c.want {
			t.Errorf("%s: needs %q, want %q", c.name, got, c.want)
		}
	}
}

// The words of all members are read back, and the kinds of guides are all of them.
func TestWords(t *testing.T) {
	if words := CarriesAll.Words(); len(words) != len(carriesNames) || ParseCarries(words) != CarriesAll {
		t.Errorf("%q", words)
	}
	// A spelling has a word and is not an engine's to claim.
	if words := CarriesAnything.Words(); len(words) != len(carriesNames)+len(spelledNames) || ParseCarries(words) != CarriesAll {
		t.Errorf("%q", words)
	}
	var guides Carries
	for k := GuideJSONSchema; k <= GuideStructuralTag; k++ {
		guides |= k.Needs()
	}
	if guides != CarriesGuides {
		t.Errorf("guides need %s", guides)
	}
}
