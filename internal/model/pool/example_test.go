package pool_test

import (
	"context"
	"fmt"
	"strings"

	"weir/internal/model/pool"
)

// The caller waits while a worker does its work. A job says what it costs, so that
// short ones go first, and yields, so that they need not wait for its end.
func ExamplePool_RunYielding() {
	p := pool.New(pool.Options{Workers: 1})
	defer p.Close()
	prompt := strings.Repeat("word ", 1000)
	words := 0
	times, err := p.RunYielding(context.Background(), len(prompt), func(yield func()) {
		for range strings.FieldsSeq(prompt) {
			if words++; words%100 == 0 {
				yield()
			}
		}
	})
	fmt.Println(words, err, times.Queued <= times.Start && times.Start <= times.End)
	// Output:
	// 1000 <nil> true
}

// A job that ends while it waits does not run, and gives the reason in the gateway's own errors.
func ExamplePool_Run() {
	p := pool.New(pool.Options{})
	p.Close()
	_, err := p.Run(context.Background(), 10, func() { fmt.Println("never") })
	fmt.Println(err)
	// Output:
	// unavailable: the gateway is shutting down
}
