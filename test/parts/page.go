package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// table returns the costs as a table of Markdown.
func table(parts []cost) string {
	var b strings.Builder
	b.WriteString("| part | seconds | CPU s of tests | budget | CPU s of compiling and checks | |\n|---|---|---|---|---|---|\n")
	var wall, cpu, compiled, budget float64
	for _, c := range parts {
		limit, note := "", ""
		if c.Budget > 0 {
			limit = fmt.Sprintf("%.0f", c.Budget)
		}
		switch {
		case len(c.Dearest) > 0:
			note = "**too dear**"
		case !c.OK:
			note = "**failed**"
		case c.Runs > 1:
			note = "in its second run"
		}
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %s | %.0f | %s |\n", c.Part, c.Wall, c.CPU, limit, c.Compiled, note)
		wall, cpu, compiled, budget = wall+c.Wall, cpu+c.CPU, compiled+c.Compiled, budget+c.Budget
	}
	fmt.Fprintf(&b, "| in all | **%.0f** | %.0f | %.0f | %.0f | |\n", wall, cpu, budget, compiled)
	return b.String()
}

// writePage writes a page from the reports of runs.
func writePage(file string, b *budget, reports []string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# What the rings cost\n\n"+
		"`go run ./test/parts -page` wrote this page from what `.ci/run` kept. "+
		"A part fails where its tests take more than 1.3 times its budget and 10 CPU seconds, twice in a row. "+
		"The budgets are in [parts.txt](../../test/parts/parts.txt); their sum may be at most %.0f CPU seconds. "+
		"*Others* is the number of CPUs that other processes took meanwhile, and *factor* how much longer a fixed piece of work took than on the machine of the budgets.\n", b.ceiling)
	for _, name := range reports {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var r report
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(r.Parts) == 0 {
			return fmt.Errorf("%s has no parts", name)
		}
		var wall, others, factor float64
		for _, c := range r.Parts {
			wall += c.Wall
			others += c.Others * c.Wall
			factor += c.Factor * c.Wall
		}
		fmt.Fprintf(&text, "\n## %s, %s\n\n%s. Others %.1f, factor %.2f.\n\n%s", r.Began.Format("2 January 2006, 15:04"), r.Commit, r.Machine, others/wall, factor/wall, table(r.Parts))
		if len(r.Repeated) > 0 {
			text.WriteString("\nRepeated:\n\n")
			for _, t := range r.Repeated {
				fmt.Fprintf(&text, "- %s\n", t.Test)
			}
		}
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}
