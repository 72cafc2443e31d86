package cli

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"weir/internal/config/budget"
	"weir/internal/config/keyfile"
)

// budgets keep what callers have used of their day in a file, so that a restart renews nothing.
// A nil one keeps nothing.
type budgets struct {
	book    *budget.Book
	callers *keyfile.Registry
	log     *slog.Logger // nil before start

	stop    context.CancelFunc
	writing sync.WaitGroup
	failing bool
}

// usedSuffix is what the file of used budgets has behind the name of the keys file.
const usedSuffix = ".used"

// budgets opens the file of used budgets.
func (f *keyFlags) budgets(callers *keyfile.Registry) (*budgets, error) {
	path := f.BudgetFile
	switch {
	case path == "off":
		return nil, nil
	case callers == nil && path != "":
		return nil, wrongf("--budget-file %s: budgets belong to keys; add --keys FILE", path)
	case callers == nil:
		return nil, nil
	case path == "":
		path = f.Keys + usedSuffix
	}
	book, err := budget.Open(path)
	if err != nil {
		return nil, wrongf("--budget-file: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, wrongf("--budget-file %s: it is a folder; give a file", path)
	}
	callers.Remember(book)
	return &budgets{book: book, callers: callers}, nil
}

// start writes the file again and again.
func (b *budgets) start(log *slog.Logger) {
	if b == nil {
		return
	}
	b.log = log
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	b.writing.Go(func() {
		tick := time.NewTicker(budget.Interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				b.write()
			}
		}
	})
}

// close writes the file for the last time.
func (b *budgets) close() {
	if b == nil || b.stop == nil {
		return
	}
	b.stop()
	b.writing.Wait()
	b.write()
}

// write writes the file, and logs when that begins and ceases to fail.
func (b *budgets) write() {
	err := b.book.Write(maps.All(b.callers.Accounts()), time.Now())
	switch {
	case err != nil && !b.failing:
		b.log.Error("what callers have used of their day cannot be written, so a restart would renew their budgets; give a file that can be written as --budget-file", "error", err)
	case err == nil && b.failing:
		b.log.Info("what callers have used of their day is written again")
	}
	b.failing = err != nil
}
