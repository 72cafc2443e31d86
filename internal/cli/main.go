// Package cli is the command line: it turns flags, environment and file into
// the parts of a process, runs them, and stops them in order.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"weir/internal/config"
	"weir/internal/infer/spell"
)

// commands is the whole command line.
type commands struct {
	Up         upCommand         `cmd:"" help:"Run a gateway with two simulated engines. Needs no configuration."`
	Serve      serveCommand      `cmd:"" help:"Run the gateway in front of engines."`
	Engine     engineCommand     `cmd:"" help:"Run a simulated engine that speaks the protocols of real ones."`
	Fleet      fleetCommand      `cmd:"" help:"Compare routing policies and fleet sizes on simulated engines and virtual time."`
	Bench      benchCommand      `cmd:"" help:"Load a server with streams, verify each of them and report latencies."`
	Experiment experimentCommand `cmd:"" help:"Measure the combinations of loads and fleets that a file lists."`
	Scenario   scenarioCommand   `cmd:"" help:"Repeat an incident that weir was built for, beside a control that must fail."`
	Report     reportCommand     `cmd:"" help:"Print a report of weir bench or of a timeline, or compare two reports."`
	Validate   validateCommand   `cmd:"" help:"Check a configuration file of weir serve without starting anything."`
	Version    versionCommand    `cmd:"" help:"Print the version, the commit and the build."`

	Frontend frontendCommand `cmd:"" help:"Serve in place of vLLM's API server. vLLM starts this command itself."`

	BenchProcess benchProcessCommand `cmd:"" hidden:"" help:"Run as a process of weir scenario or weir bench --calibrate."`

	Keys     keysCommand     `cmd:"" help:"Make, list and revoke the keys of callers and operators."`
	Limits   limitsCommand   `cmd:"" help:"Show and set the limits of the callers of a running gateway."`
	Engines  enginesCommand  `cmd:"" help:"Show the engines of a running gateway."`
	Timeline timelineCommand `cmd:"" help:"Show where the time of a request went, or of the slowest requests."`
	Why      whyCommand      `cmd:"" help:"Explain why a request went to its engine, or where a request would go."`
	Tokenize tokenizeCommand `cmd:"" help:"Print the token ids of a text, or the text of token ids."`

	VersionFlag kong.VersionFlag `name:"version" env:"-" hidden:"" help:"Print the version."`
}

// streams are the process's input, its outputs, and the signals by which it is
// asked to end, handed to every command.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// notify sends some signals to a channel until stop is called.
	notify func(to chan<- os.Signal, some ...os.Signal) (stop func())
	// args are those of the command line, to be read again.
	args   []string
	inFile int // keys of the configuration file
}

const description = `A gateway for LLM inference. It stands between clients and engines, carries their token streams without losing a token, and reports where each millisecond went.

A flag can also be set by an environment variable, such as WEIR_LISTEN for --listen, and a flag of weir serve in a YAML file under its own name (--config). The command line takes precedence over the environment, and the environment over the file.`

// Main runs the command line and gives the process's exit code: 0 after a clean
// end, 1 when the work failed, 2 when the command line is wrong.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(args, &streams{in: stdin, out: stdout, err: stderr, notify: notifyOfSignals})
}

// newParser makes the parser of the command line, with the values of a file behind it.
func newParser(c *commands, file *fileResolver, s *streams, exit func(code int)) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("weir"),
		kong.Description(description),
		kong.Writers(s.out, s.err),
		kong.Exit(exit),
		kong.DefaultEnvars("WEIR"),
		kong.Resolvers(file),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{"version": version()},
	)
}

// execute is Main of any streams.
func execute(args []string, s *streams) int {
	var c commands
	var file fileResolver
	exited, code := false, 0
	s.args = args
	parser, err := newParser(&c, &file, s, func(n int) { exited, code = true, n })
	if err != nil {
		fmt.Fprintln(s.err, "weir:", graphicLines(err.Error()))
		return 2
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help": // weir help serve
		args = append(args[1:len(args):len(args)], "--help")
	}
	if err := knownCommand(parser, args[0]); err != nil {
		fmt.Fprintln(s.err, "weir:", graphicLines(err.Error()))
		fmt.Fprintln(s.err, `Run "weir --help" for the commands.`)
		return 2
	}
	if err := file.read(parser, args); err != nil {
		fmt.Fprintln(s.err, "weir:", graphicLines(err.Error()))
		return 2
	}
	s.inFile = file.keys()
	ctx, err := parser.Parse(args)
	if exited {
		return code
	}
	if err != nil {
		fmt.Fprintln(s.err, "weir:", graphicLines(file.placed(args, err).Error()))
		command := ""
		if failed := (*kong.ParseError)(nil); errors.As(err, &failed) && failed.Context.Selected() != nil {
			command = failed.Context.Selected().Path() + " "
		}
		fmt.Fprintf(s.err, "Run \"weir %s--help\" for the flags and examples.\n", command)
		return 2
	}
	for _, line := range unknownEnvironment(parser.Model, os.Environ()) {
		fmt.Fprintln(s.err, "weir:", graphicLines(line))
	}
	if err := ctx.Run(s); err != nil {
		var status exitStatus
		if errors.As(err, &status) {
			return int(status)
		}
		fmt.Fprintln(s.err, "weir:", graphicLines(file.placed(args, err).Error()))
		var wrong wrongUsage
		if errors.As(err, &wrong) {
			fmt.Fprintf(s.err, "Run \"weir %s --help\" for the flags and examples.\n", ctx.Selected().Path())
			return 2
		}
		return 1
	}
	return 0
}

// again reads the command line of a weir serve, its environment and its file once more.
func (s *streams) again() (*serveCommand, settings, error) {
	var c commands
	var file fileResolver
	parser, err := newParser(&c, &file, &streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		return nil, settings{}, err
	}
	if err := file.read(parser, s.args); err != nil {
		return nil, settings{}, err
	}
	k, err := parser.Parse(s.args)
	if err != nil {
		return nil, settings{}, file.placed(s.args, err)
	}
	if len(c.Serve.Engine)+len(c.Serve.Discover) == 0 {
		return nil, settings{}, errors.New("it has no engine")
	}
	if _, err := c.Serve.options(); err != nil {
		return nil, settings{}, file.placed(s.args, err)
	}
	for _, judge := range []func() error{
		func() error { _, err := parseEngines(c.Serve.Engine); return err },
		func() error { _, err := parseModels(c.Serve.Model); return err },
		func() (err error) { c.Serve.discoveries, err = reach(c.Serve.Discover); return err },
	} {
		if err := judge(); err != nil {
			return nil, settings{}, file.placed(s.args, err)
		}
	}
	now := flagsOf(k)
	now.inFile = file.keys()
	return &c.Serve, now, nil
}

// knownCommand refuses a command that does not exist, and names the nearest one.
func knownCommand(parser *kong.Kong, name string) error {
	var names []string
	for _, command := range parser.Model.Children {
		if command.Name == name {
			return nil
		}
		if !command.Hidden {
			names = append(names, command.Name)
		}
	}
	if strings.HasPrefix(name, "-") {
		return nil // a flag of weir itself
	}
	if near := spell.Nearest(name, names, 1+len(name)/3); near != "" {
		return fmt.Errorf("there is no command %q (did you mean %q?)", name, near)
	}
	return fmt.Errorf("there is no command %q", name)
}

// wrongUsage is a command line that cannot be meant, as opposed to work that
// failed.
type wrongUsage struct{ error }

func (w wrongUsage) Unwrap() error { return w.error }

func wrongf(format string, args ...any) error { return wrongUsage{fmt.Errorf(format, args...)} }

// exitStatus ends the process with a code and no message.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// fileResolver makes the values of a configuration file the flags' defaults.
type fileResolver struct{ file *config.File }

// read finds --config in the arguments or the environment, before kong parses
// them, and reads the file.
func (r *fileResolver) read(parser *kong.Kong, args []string) (err error) {
	path := os.Getenv("WEIR_CONFIG")
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--config="); ok {
			path = value
		} else if arg == "--config" && i+1 < len(args) {
			path = args[i+1]
		}
	}
	if path != "" {
		r.file, err = config.ReadFile(path, serveFlags(parser))
	}
	return err
}

// keys returns how many keys the file has, or one if it says that there are none.
func (r *fileResolver) keys() int {
	if r.file == nil {
		return 0
	}
	return max(len(r.file.Values), map[bool]int{true: 1}[r.file.Said])
}

// placed adds the line of the file to an error about a flag that the file sets, unless the
// command line overrides it.
func (r *fileResolver) placed(args []string, err error) error {
	flag := flagIn(err)
	given := func(arg string) bool { return arg == "--"+flag || strings.HasPrefix(arg, "--"+flag+"=") }
	if r.file == nil || flag == "" || slices.ContainsFunc(args, given) {
		return err
	}
	line := lineOf(r.file, flag, -1)
	if line == 0 {
		return err
	}
	return fmt.Errorf("config %s: line %d: %w", r.file.Path, line, err)
}

// Validate implements kong.Resolver: the file was checked when it was read.
func (r *fileResolver) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver. The environment, which kong also treats as a default,
// has priority over the file.
func (r *fileResolver) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if r.file == nil || len(flag.Envs) == 0 { // a flag of the command line alone
		return nil, nil
	}
	values, ok := r.file.Values[flag.Name]
	if !ok || slices.ContainsFunc(flag.Envs, func(env string) bool { return os.Getenv(env) != "" }) {
		return nil, nil
	}
	if flag.IsSlice() || flag.IsMap() {
		return strings.Join(values, separator), nil
	}
	if len(values) != 1 {
		return nil, fmt.Errorf("config %s: %q takes one value, not %d", r.file.Path, flag.Name, len(values))
	}
	return values[0], nil
}

// serveFlags lists the flags that a file may set: those of weir serve.
func serveFlags(parser *kong.Kong) []string {
	var names []string
	for _, command := range parser.Model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, flag := range command.Flags {
			if flag.Name != "config" && flag.Name != "help" {
				names = append(names, flag.Name)
			}
		}
	}
	return names
}

// separator stands between the values of a repeatable flag where they come as
// one string: in the environment and from the file.
const separator = ";"
