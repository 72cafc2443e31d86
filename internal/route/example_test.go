package route_test

import (
	"fmt"

	"weir/internal/route"
)

// The fleet publishes a snapshot; a request picks from it, and picks again without
// the engines that failed it.
func ExampleModel_Pick() {
	a, b := &route.Engine{Name: "a", Ready: true}, &route.Engine{Name: "b", Ready: true}
	fleet := &route.Snapshot{
		Engines: []*route.Engine{a, b},
		Models: map[string]*route.Model{
			"llama": {Name: "llama", Policy: new(route.RoundRobin), Targets: []route.Target{{Engine: a, Model: "llama"}, {Engine: b, Model: "llama-3"}}},
		},
	}
	model := fleet.Models["llama"]
	for range 3 {
		t, _ := model.Pick(0, nil)
		fmt.Println(t.Name, "knows it as", t.Model)
	}
	t, ok := model.Pick(0, []*route.Engine{a})
	fmt.Println(t.Name, ok)
	_, ok = model.Pick(0, []*route.Engine{a, b})
	fmt.Println("when both have failed:", ok)
	// Output:
	// a knows it as llama
	// b knows it as llama-3
	// a knows it as llama
	// b true
	// when both have failed: false
}
