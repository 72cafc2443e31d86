package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"weir/internal/config"
)

var flagName = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)

// flagIn returns the flag that an error is about, without dashes; empty if it names none.
func flagIn(err error) string {
	if m := flagName.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return ""
}

// lineOf returns the line of a file in which a value of a flag stands. item is the index of
// the value; with -1 the line is that of the first value that cannot be parsed, or else of
// the first value. The line is 0 if the file does not set the flag, or if the environment
// overrides the file.
func lineOf(file *config.File, flag string, item int) int {
	lines := file.Lines[flag]
	if len(lines) == 0 || os.Getenv("WEIR_"+strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))) != "" {
		return 0
	}
	if item < 0 {
		item = max(0, slices.IndexFunc(file.Values[flag], func(value string) bool { return unparsable(flag, value) }))
	}
	return lines[min(item, len(lines)-1)]
}

// unparsable reports whether a value of a repeatable flag is wrong by itself.
func unparsable(flag, value string) bool {
	var err error
	switch flag {
	case "engine":
		_, err = parseEngines([]string{value})
	case "discover":
		_, err = reach([]string{value})
	case "model":
		_, err = parseModels([]string{value})
	}
	return err != nil
}
