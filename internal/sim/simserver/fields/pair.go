package fields

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Pair are the fields that describe a pair in SGLang's /generate and OpenAI
// endpoints. Each may be one value, or a list with one per item.
type Pair struct {
	BootstrapHost jsontext.Value `json:"bootstrap_host"`
	BootstrapPort jsontext.Value `json:"bootstrap_port"`
	BootstrapRoom jsontext.Value `json:"bootstrap_room"`

	PrefillDPRank *int `json:"disagg_prefill_dp_rank"`
}

// Pairing holds these fields for one item.
type Pairing struct {
	Host string
	Port int
	Room *int64
	// PrefillRank is disagg_prefill_dp_rank.
	PrefillRank *int
	// Shared reports whether the prompt has several outputs, which SGLang sends to one
	// room.
	Shared bool
}

// Each returns the pairings of a number of prompts with n outputs each. A room that is not
// a list belongs to the first prompt, and each later prompt has the next room.
func (p *Pair) Each(prompts, n int) ([]Pairing, error) {
	count := prompts * n
	spread := func(name string, v jsontext.Value, kind jsontext.Kind, set func(i int, one jsontext.Value) error) error {
		list := []jsontext.Value{v}
		switch v.Kind() {
		case 0, 'n':
			return nil
		case kind:
		case '[':
			if err := json.Unmarshal(v, &list); err != nil {
				return infer.Invalid(name, "%s is not valid: %v", name, err)
			}
			if len(list) != count && len(list) != prompts {
				return infer.Invalid(name, "%s has %d items and the request %d", name, len(list), prompts)
			}
		default:
			return infer.Invalid(name, "%s has the wrong type", name)
		}
		for i := range count {
			if err := set(i, list[i*len(list)/count]); err != nil {
				return infer.Invalid(name, "%s is not valid: %v", name, err)
			}
		}
		return nil
	}
	all := make([]Pairing, count)
	for i := range all {
		all[i].PrefillRank, all[i].Shared = p.PrefillDPRank, n > 1
	}
	if err := spread("bootstrap_host", p.BootstrapHost, '"', func(i int, v jsontext.Value) error { return json.Unmarshal(v, &all[i].Host) }); err != nil {
		return nil, err
	}
	if err := spread("bootstrap_port", p.BootstrapPort, '0', func(i int, v jsontext.Value) error { return json.Unmarshal(v, &all[i].Port) }); err != nil {
		return nil, err
	}
	err := spread("bootstrap_room", p.BootstrapRoom, '0', func(i int, v jsontext.Value) error {
		if err := json.Unmarshal(v, &all[i].Room); err != nil || all[i].Room == nil {
			return err
		}
		if p.BootstrapRoom.Kind() != '[' {
			*all[i].Room += int64(i)
		}
		return nil
	})
	return all, err
}
