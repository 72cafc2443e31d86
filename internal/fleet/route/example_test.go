package route_test

import (
	"fmt"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
)

// The fleet publishes a snapshot; a request picks from it, and picks again without
// the engines that failed it.
func ExampleModel_Pick() {
	ranks, index := cost.NewModel(cost.Typical), kvindex.New(1<<20)
	engine := func(name string) route.Target {
		t := route.Target{Engine: &route.Engine{Name: name, Ready: true}, Rank: route.Whole(name)}
		t.Books = route.NewBooks(ranks, index, new(route.Shares), &t.Facts, 0)
		return t
	}
	a, b := engine("a"), engine("b")
	model := &route.Model{Name: "llama", Policy: new(balance.RoundRobin)}
	a.Model, b.Model = "llama", "llama-3"
	model.Add(a)
	model.Add(b)
	choice := new(route.Choice)
	choice.Request.Length, choice.Request.Output = 1000, 200
	for range 3 {
		t, _, _ := model.Pick(route.Needs{}, nil, choice)
		fmt.Println(t.Name, "knows it as", t.Model)
	}
	t, _, ok := model.Pick(route.Needs{}, []route.Target{a}, choice)
	fmt.Println(t.Name, ok)
	_, _, ok = model.Pick(route.Needs{}, []route.Target{a, b}, choice)
	fmt.Println("when both have failed:", ok)
	// Output:
	// a knows it as llama
	// b knows it as llama-3
	// a knows it as llama
	// b true
	// when both have failed: false
}
