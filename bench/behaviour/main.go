//go:build linux

// Command behaviour shows what gateways do when an engine or a client misbehaves. It
// runs weir's relay, and gateways that others publish. Each stands in front of an
// engine that follows a script. The answer to a case is what the client and the engine
// saw. docs/bench/peers.md has the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir/bench/peers"
	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/ports"
)

func main() { lab.Main("behaviour", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("behaviour", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		who    = flags.String("gateways", "weir relay,nginx,"+peers.HAProxy+","+peers.SMG+","+peers.Router+","+peers.VLLMRouter+","+peers.LiteLLM+","+peers.Portkey, "gateways to ask, comma-separated")
		folder = flags.String("peers", peers.Folder, "where make bench-peers set up the gateways that others publish")
		weir   = flags.String("weir", "", "weir's binary; built from ./cmd/weir unless given")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	var chosen []lab.Gateway
	all := slices.Concat(lab.Gateways(), peers.All(*folder))
	for name := range strings.SplitSeq(*who, ",") {
		i := slices.IndexFunc(all, func(g lab.Gateway) bool { return g.Name == name && g.Relayed })
		if i < 0 {
			return fmt.Errorf("-gateways: no gateway %q relays what an engine says", name)
		}
		chosen = append(chosen, all[i])
	}
	b := &lab.Bench{Weir: *weir, Log: stderr}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.Self = []string{self}
	if b.Dir, err = os.MkdirTemp("", "behaviour"); err != nil {
		return err
	}
	defer os.RemoveAll(b.Dir)
	if b.Weir == "" {
		b.Weir = filepath.Join(b.Dir, "weir")
		if err := lab.Build(ctx, b.Weir, stderr); err != nil {
			return err
		}
	}
	table := make([][]string, len(cases()))
	for i, c := range cases() {
		table[i] = []string{c.name}
	}
	head := []string{""}
	failed := error(nil)
	for _, g := range chosen {
		head = append(head, strings.TrimSpace(g.Name+" "+peers.Version(*folder, g.Name)))
		answers, err := ask(ctx, b, g, stderr)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", g.Name, err))
			answers = slices.Repeat([]string{"not asked"}, len(table))
		}
		for i, answer := range answers {
			table[i] = append(table[i], answer)
		}
		if ctx.Err() != nil {
			break
		}
	}
	printTable(stdout, head, table)
	return failed
}

// ask runs every case against one gateway.
func ask(ctx context.Context, b *lab.Bench, g lab.Gateway, progress io.Writer) ([]string, error) {
	e, err := newEngine()
	if err != nil {
		return nil, err
	}
	defer e.close()
	c := &cell.Cell{Engine: e.addr(), Relayed: true}
	if c.Gateway, err = ports.Free(); err != nil {
		return nil, err
	}
	p, err := b.StartGateway(ctx, g, c)
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	r := &rig{engine: e, gateway: c.Gateway, memory: func() int64 { return resident(p.PIDs()) },
		patience: 30 * time.Second, flood: 8 * time.Second}
	if g.Header != nil {
		r.header = g.Header(c)
	}
	var answers []string
	for _, c := range cases() {
		answer := c.ask(ctx, r)
		fmt.Fprintf(progress, "%s, %s: %s\n", g.Name, c.name, answer)
		answers = append(answers, answer)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func printTable(w io.Writer, head []string, rows [][]string) {
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}
