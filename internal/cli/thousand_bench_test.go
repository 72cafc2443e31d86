package cli

import (
	"fmt"
	"testing"

	"weir/internal/config"
)

// What a change of a dozen of a thousand discovered engines costs in the wanted fleet.
func BenchmarkThousandFound(b *testing.B) {
	const spec = "kubernetes=pods,selector=app=x,kind=openai"
	w := wishes{discover: []string{spec}, found: map[string][]config.Wanted{}}
	var all []config.Wanted
	for i := range 1000 {
		e, err := config.ParseEngine(fmt.Sprintf("openai=http://10.0.%d.%d:8000,name=pod-%04d", i/250, i%250+1, i))
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, config.Wanted{Engine: e, Spec: "x", Origin: "kubernetes"})
	}
	w.found[spec] = all
	before, _, err := w.desired()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		next := w.clone()
		for i := range 12 {
			all[i].Drained = n%2 == 0
		}
		want, _, err := next.desired()
		if err != nil {
			b.Fatal(err)
		}
		if got := len(config.Diff(&before, &want)); got != 12 && n > 0 {
			b.Fatal(got)
		}
		before = want
	}
}
