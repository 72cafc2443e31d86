package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// A part is a row of parts.txt.
type part struct {
	name    string
	budget  float64 // CPU seconds of its tests; 0: it has no tests, and is not judged
	command string
}

// A budget is parts.txt.
type budget struct {
	text      string
	ceiling   float64 // what the sum of all budgets must not exceed
	reference float64 // CPU seconds of the reference work on the machine of the budgets
	parts     []part
}

// allowed is what a part may cost on a machine that takes factor times as long for the
// reference work as that of the budgets.
func (p part) allowed(factor float64) float64 { return (1.3*p.budget + 10) * factor }

func readBudget(file string) (*budget, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b, err := parseBudget(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", file, err)
	}
	return b, nil
}

func parseBudget(text string) (*budget, error) {
	b := &budget{text: text}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 2 {
			return nil, fmt.Errorf("%d: %q is no row: a name, CPU seconds, a command", number, strings.TrimSpace(line))
		}
		seconds, err := strconv.ParseFloat(words[1], 64)
		if words[1] == "-" {
			seconds, err = 0, nil
		}
		if err != nil || !(seconds >= 0 && seconds < 1e6) {
			return nil, fmt.Errorf("%d: %q is no number of CPU seconds", number, words[1])
		}
		switch words[0] {
		case "ceiling":
			b.ceiling = seconds
		case "reference":
			b.reference = seconds
		default:
			if len(words) < 3 {
				return nil, fmt.Errorf("%d: part %s has no command", number, words[0])
			}
			b.parts = append(b.parts, part{words[0], seconds, strings.Join(words[2:], " ")})
		}
	}
	sum := 0.0
	for _, p := range b.parts {
		sum += p.budget
	}
	switch {
	case len(b.parts) == 0 || b.reference == 0:
		return nil, fmt.Errorf("%d: it has no part, or no reference", number)
	case sum > b.ceiling:
		return nil, fmt.Errorf("%d: the budgets are %.0f CPU seconds in all, and the ceiling is %.0f: take something out for what is put in", number, sum, b.ceiling)
	}
	return b, nil
}

func (b *budget) names() (names []string) {
	for _, p := range b.parts {
		names = append(names, p.name)
	}
	return names
}

// lower writes the costs that are below their budgets into the file.
func (b *budget) lower(file string, costs []cost) error {
	text := b.text
	for _, p := range b.parts {
		for _, c := range costs {
			was, now := strconv.FormatFloat(p.budget, 'f', -1, 64), math.Ceil(c.CPU/c.Factor)
			if c.Part != p.name || c.Runs > 1 || p.budget == 0 || now >= p.budget {
				continue
			}
			is := strconv.FormatFloat(now, 'f', -1, 64)
			var lines strings.Builder
			for line := range strings.Lines(text) {
				if words := strings.Fields(line); len(words) > 1 && words[0] == p.name {
					line = strings.Replace(line, " "+was+" ", " "+strings.Repeat(" ", max(0, len(was)-len(is)))+is+" ", 1)
				}
				lines.WriteString(line)
			}
			text = lines.String()
		}
	}
	if text == b.text {
		return nil
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
