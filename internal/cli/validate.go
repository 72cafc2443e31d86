package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"weir/internal/config"
)

type validateCommand struct {
	File string `arg:"" placeholder:"FILE" help:"The YAML file, as for weir serve --config."`
}

// Help implements kong's extended help.
func (validateCommand) Help() string {
	return `Reads the file as weir serve --config FILE would, and prints every problem with its line: unknown keys with the nearest known one, values, engines' specifications, their key and certificate files, models' folders, the gateway's certificate. No port is bound and no engine is asked. As for weir serve, environment variables (WEIR_...) take precedence over the file.

A valid file is followed by what the chat template of each model takes (docs/templates.md).

The exit status is 0 if weir serve would start, 1 if something is wrong, and 2 if the file cannot be read.

Examples:
  weir validate weir.yaml
  weir validate /etc/weir/weir.yaml && systemctl restart weir`
}

// Run implements the command.
func (c *validateCommand) Run(s *streams) error {
	parser, err := newParser(new(commands), new(fileResolver), s, func(int) {})
	if err != nil {
		return err
	}
	file, err := config.ReadFile(c.File, serveFlags(parser))
	if file == nil {
		return wrongf("%w", err)
	}
	v := validation{file: file}
	v.reading(err)
	serve := v.values()
	v.parts(serve)
	slices.SortStableFunc(v.found, func(a, b problem) int { return a.line - b.line })
	for _, p := range v.found {
		fmt.Fprintf(s.err, "%s:%s\n", graphic(c.File, ""), graphicLines(p.String()))
	}
	if n := len(v.found); n > 0 {
		fmt.Fprintf(s.err, "%s: %s\n", graphic(c.File, ""), counted(n, "problem"))
		return exitStatus(1)
	}
	sayLine(s.out, "%s is valid: %s, %s, %s", c.File, counted(len(serve.Engine), "engine"), counted(len(serve.Model), "model"), counted(len(file.Values), "key"))
	v.templates(s.out)
	return nil
}

// templates prints what the chat template of each model takes, and what is to be known of its
// folder.
func (v *validation) templates(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(v.models)) {
		m := v.models[name]
		rows := m.folder.Takes()
		if m.Dir == "" || rows == nil {
			continue
		}
		sayLine(w, "model %s: its chat template (docs/templates.md)", name)
		for _, r := range rows {
			sayLine(w, "  %-18s %s", r.Of, r.How)
		}
		for _, note := range m.folder.Notes() {
			sayLine(w, "  note: %s", note)
		}
	}
}

// counted writes a number of things.
func counted(n int, of string) string {
	if n != 1 {
		of += "s"
	}
	return fmt.Sprintf("%d %s", n, of)
}

// validation collects the problems of a file.
type validation struct {
	file   *config.File
	broken bool // nothing in it could be read
	found  []problem
	models servedModels
}

// problem is one thing that is wrong; line is 0 where it is in no line.
type problem struct {
	line int
	text string
}

// lineFirst is the line with which an error of reading a file begins.
var lineFirst = regexp.MustCompile(`^(?:line ([0-9]+): |\[([0-9]+):[0-9]+\] )`)

// problem adds an error about a key, with the line of the key as lineOf finds it. An error is
// added once.
func (v *validation) problem(key string, err error, item int) {
	text := err.Error()
	if named := flagIn(err); named != "" {
		key = named
	} else if key != "" {
		text = "--" + key + ": " + text
	}
	p := problem{line: lineOf(v.file, key, item), text: text}
	if !slices.ContainsFunc(v.found, func(q problem) bool { return q.text == text }) {
		v.found = append(v.found, p)
	}
}

// reading adds the errors of reading the file, which name their lines.
func (v *validation) reading(err error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	v.broken = len(v.file.Lines) == 0
	for _, one := range joined.Unwrap() {
		text := strings.TrimPrefix(one.Error(), "config "+v.file.Path+": ")
		p := problem{text: text}
		if m := lineFirst.FindStringSubmatch(text); m != nil {
			p.line, _ = strconv.Atoi(m[1] + m[2])
			p.text = strings.TrimSpace(text[len(m[0]):])
		}
		v.found = append(v.found, p)
	}
}

// String is the problem as it is printed behind the file's name.
func (p problem) String() string {
	if p.line == 0 {
		return " " + p.text
	}
	return fmt.Sprintf("%d: %s", p.line, p.text)
}

// values judges the value of each key alone, and returns the valid ones as flags.
func (v *validation) values() *serveCommand {
	good := &config.File{Path: v.file.Path, Values: map[string][]string{}}
	var c commands
	var file fileResolver
	parser, err := newParser(&c, &file, &streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		v.problem("", err, -1)
		return &c.Serve
	}
	parse := func(of *config.File) error { // of these values alone: it sets all others to their defaults
		file.file = of
		_, err := parser.Parse([]string{"serve"})
		return err
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.file.Values), func(a, b string) int { return v.line(a) - v.line(b) }) {
		one := &config.File{Path: v.file.Path, Values: map[string][]string{key: v.file.Values[key]}}
		if err := parse(one); err != nil {
			v.problem(key, err, -1)
			continue
		}
		good.Values[key] = v.file.Values[key]
	}
	if err := parse(good); err != nil { // of the environment
		v.problem("", err, -1)
	}
	return &c.Serve
}

// line is where a key stands.
func (v *validation) line(key string) int {
	if lines := v.file.Lines[key]; len(lines) > 0 {
		return lines[0]
	}
	return 0
}

// parts judges the values together.
func (v *validation) parts(c *serveCommand) {
	if len(c.Engine) == 0 && v.file.Lines["engine"] == nil && !v.broken {
		v.problem("", errors.New(`no engine is given: add "engine: http://HOST:PORT"`), -1)
	}
	log := slog.New(slog.DiscardHandler)
	for i, spec := range c.Engine {
		engines, err := parseEngines([]string{spec})
		if err != nil {
			v.problem("engine", err, i)
			continue
		}
		for k := range engines {
			_, err = accessTo(&engines[k], log)
			if err == nil {
				_, err = halvesOf(&engines[k])
			}
			if err != nil {
				v.problem("engine", err, i)
			}
		}
	}
	for i, spec := range c.Model {
		specs, err := parseModels([]string{spec})
		if err == nil {
			_, err = loadModels(specs[:1])
		}
		if err != nil {
			v.problem("model", err, i)
		}
	}
	parts, problems := c.judge(true)
	for _, err := range problems {
		v.problem("model", err, -1) // errors about other flags name them
	}
	if v.models = parts.models; problems == nil {
		v.folders(c, &parts)
	}
	if _, err := c.certificate(log); err != nil {
		v.problem("tls-cert", err, -1)
	}
	if _, err := c.adminCertificate(log); err != nil {
		v.problem("admin-tls-cert", err, -1)
	}
	if _, err := c.clientAuthorities(log); err != nil {
		v.problem("client-ca", err, -1)
	}
	if _, err := c.openKeys(); err != nil {
		v.problem("keys", err, -1)
	}
	for _, at := range []struct{ key, addr string }{{"listen", c.Listen}, {"admin-listen", c.AdminListen}, {"peer-listen", c.PeerListen}} {
		if at.addr == "" || at.key != "listen" && at.addr == "off" {
			continue
		}
		if err := checkAddress("--"+at.key, at.addr); err != nil {
			v.problem(at.key, err, -1)
		}
	}
	v.outputs(c)
}

// folders looks for models that engines serve by ids and nobody has a folder of.
func (v *validation) folders(c *serveCommand, p *serveParts) {
	engines, _ := parseEngines(c.Engine) // which have been judged
	for i := range engines {
		e := &engines[i]
		if e.Kind != "auto" && e.Kind != "openai" && e.Model != "" && p.models.find(e.Model) == nil {
			v.problem("engine", fmt.Errorf("--engine %s: an engine of kind %s takes token ids, and no model %q has a folder here: add it to model as {name: %s, dir: DIR}", e.Name, e.Kind, e.Model, e.Model), i)
		}
	}
}

// outputs looks for the folders of files that will be written.
func (v *validation) outputs(c *serveCommand) {
	for _, f := range []struct {
		flag, file string
		written    bool
	}{{"timeline", c.Timeline, c.written()}, {"usage-log", c.UsageLog, c.UsageLog != ""}} {
		if !f.written {
			continue
		}
		dir := filepath.Dir(kong.ExpandPath(f.file))
		if info, err := os.Stat(dir); err != nil {
			v.problem(f.flag, fmt.Errorf("--%s %s: %w", f.flag, f.file, err), -1)
		} else if !info.IsDir() {
			v.problem(f.flag, fmt.Errorf("--%s %s: %s is no folder", f.flag, f.file, dir), -1)
		}
	}
}
