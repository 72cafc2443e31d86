package tokenizer_test

import (
	"context"
	"fmt"

	"weir/internal/model/stop"
	"weir/internal/model/tokenizer"
	"weir/models"
)

// A model folder gives a tokenizer; each goroutine that encodes has an encoder.
func ExampleLoad() {
	model, err := tokenizer.Load(models.Sim()) // os.DirFS("/models/llama") for a folder
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := model.Tokenizer.NewEncoder().Encode(context.Background(), nil, "Hello, world", tokenizer.EncodeOptions{})
	fmt.Println(ids, err)
	fmt.Printf("%q\n", model.Tokenizer.Decode(ids, false))
	// Output:
	// [4286 11 4945] <nil>
	// "Hello, world"
}

// Ids become text as they come. What may be the beginning of a stop string is held
// until it is known not to be.
func ExampleDetokenizer() {
	model, err := tokenizer.Load(models.Sim())
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := model.Tokenizer.NewEncoder().Encode(context.Background(), nil, "one two three four five", tokenizer.EncodeOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	d := tokenizer.NewDetokenizer(model.Tokenizer, tokenizer.DetokenizerOptions{Stops: stop.New([]string{"two four", "three four"})})
	for _, id := range ids {
		text, _, stopped := d.Append(nil, []uint32{id})
		fmt.Printf("%q, %d held\n", text, d.Held())
		if stopped {
			fmt.Println("stopped")
			break
		}
	}
	// Output:
	// "one", 0 held
	// " ", 3 held
	// "two ", 5 held
	// "", 0 held
	// stopped
}
