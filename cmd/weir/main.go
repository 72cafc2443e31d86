// Command weir is a gateway for LLM inference. Run it without arguments for its
// commands.
package main

import (
	"os"

	"weir/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
