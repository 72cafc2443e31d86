package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"weir/internal/model/tokenizer"
)

// turnBytes is the length of a turn of the conversations.
const turnBytes = 2 << 10

// prefixReuse prints the cost of a conversation of 160 KB, with a PrefixCache and
// without. The tokenizer has seen all turns but the last twentieth.
func prefixReuse(w io.Writer, t *tokenizer.Tokenizer, text string, each time.Duration) error {
	var turns []string
	for len(text) >= turnBytes {
		part := prefix(text, turnBytes)
		text = text[len(part):]
		turns = append(turns, "<|im_start|>user\n"+part+"<|im_end|>\n")
	}
	shared := len(turns) * 19 / 20
	conversation := func(round int) string {
		s := ""
		for i, turn := range turns {
			if i >= shared {
				turn = fmt.Sprintf("<|im_start|>user\nround %d: %s", round, turn[len("<|im_start|>user\n"):])
			}
			s += turn
		}
		return s
	}
	cache := tokenizer.NewPrefixCache(64 << 20)
	enc := t.NewEncoder()
	var ids []uint32
	best := func(o tokenizer.EncodeOptions) (rate float64, err error) {
		least := time.Duration(1 << 62)
		round := 0
		for end := time.Now().Add(each); time.Now().Before(end); round++ {
			s := conversation(round)
			enc.Forget()
			start := time.Now()
			if ids, err = enc.Encode(context.Background(), ids[:0], s, o); err != nil {
				return 0, err
			}
			if took := time.Since(start); round > 0 { // the first has seen nothing
				least = min(least, took)
			}
		}
		return float64(len(ids)) / least.Seconds(), nil
	}
	cold, err := best(tokenizer.EncodeOptions{})
	if err != nil {
		return err
	}
	reused, err := best(tokenizer.EncodeOptions{Prefix: cache})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nprefix reuse, llama3, a conversation of %d tokens of which 95 %% were seen: %.1f M tok/s cold, %.1f M tok/s with the cache, %.1f times\n",
		len(ids), cold/1e6, reused/1e6, reused/cold)
	return err
}
