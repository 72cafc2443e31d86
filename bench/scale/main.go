//go:build linux

// Command scale compares what weir costs on this machine with the cost model of
// docs/scale.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"weir/internal/lab"
)

func main() { lab.Main("scale", run) }

type bencher struct {
	weir string
	dir  string
	profile string
	log  io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	b := &bencher{log: stderr}
	var (
		idle    = flags.Int("idle", 9000, "idle streams of which the memory is measured; 0: none")
		only    = flags.String("wires", "relay,plane,sglang", "wires to engines")
		askedBy = flags.String("clients", strings.Join(clients(), ","), "clients of idle streams")
		repeats = flags.Int("n", 1, "repeats")
		keep    = flags.String("profile", "", "write heap profiles of idle streams to this folder")
	)
	flags.StringVar(&b.weir, "weir", "", "weir's binary; built from ./cmd/weir unless given")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b.profile = *keep
	if _, err := lab.RaiseFiles(); err != nil {
		return err
	}
	var err error
	if b.dir, err = os.MkdirTemp("", "scale"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.weir == "" {
		b.weir = filepath.Join(b.dir, "weir")
		if err := lab.Build(ctx, b.weir, stderr); err != nil {
			return err
		}
	}
	for range *repeats {
		for _, wire := range strings.Split(*only, ",") {
			for _, client := range strings.Split(*askedBy, ",") {
				r, err := b.measureIdle(ctx, wire, client, *idle)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", wire, client, err)
				}
				fmt.Fprintf(stdout, "%s %s: %+v\n", wire, client, *r)
			}
		}
	}
	return nil
}
