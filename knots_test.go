package weir_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A knot is a set of files in a package of which each reaches each other one, by the names that they
// use: functions, types, fields and methods. None has more files or lines than these, so that each can
// be read and changed by itself.
const (
	knotFiles = 12
	knotLines = 2500
)

// knots are those that are larger: a package, the files of its knot, and its lines, rounded up to a thousand.
// The list only falls. A package that falls below the bounds leaves it for ever.
const knots = `
	cli: 56 13000
	dialect/responses: 10 3000
	lab/fleetsim: 13 4000
	lab/scenario: 19 7000
	load: 21 5000
	model/chat/jinja: 29 10000
	model/outputparse: 14 4000
	model/tokenizer: 29 8000
	sim: 18 4000
`

// listed is a package as go list describes it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// TestKnots holds packages to the bounds, and the list to the packages.
func TestKnots(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./internal/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	var own []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if exports[p.ImportPath] = p.Export; strings.HasPrefix(p.ImportPath, "weir/internal/") {
			own = append(own, p)
		}
	}
	allowed := table(t, knots)
	fset := token.NewFileSet()
	from := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range own {
		name := strings.TrimPrefix(p.ImportPath, "weir/internal/")
		files, lines := knotOf(t, fset, from, p)
		if files <= knotFiles && lines <= knotLines {
			continue
		}
		rounded := (lines + 999) / 1000 * 1000
		if is, want := []string{strconv.Itoa(files), strconv.Itoa(rounded)}, allowed[name]; !slices.Equal(is, want) {
			t.Errorf("%s has a knot of %d files with %d lines: the list has %q. If they are fewer, write %s: %d %d. If they are more, divide what was added", name, files, lines, want, name, files, rounded)
		}
		delete(allowed, name)
	}
	for name := range allowed {
		t.Errorf("%s has no knot beyond the bounds any more: take it off the list", name)
	}
}

// knotOf returns the files and lines of the largest knot of a package.
func knotOf(t *testing.T, fset *token.FileSet, from types.Importer, p listed) (files, lines int) {
	t.Helper()
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := (&types.Config{Importer: from}).Check(p.ImportPath, fset, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	uses := map[*token.File]map[*token.File]bool{} // files by who uses them
	for id, o := range info.Uses {
		v, _ := o.(*types.Var)
		_, method := o.(*types.Func)
		if o.Pkg() != pkg || !method && o.Parent() != pkg.Scope() && (v == nil || !v.IsField()) {
			continue // another package's, or a function's own
		}
		user, used := fset.File(id.Pos()), fset.File(o.Pos())
		if uses[user] == nil {
			uses[user] = map[*token.File]bool{}
		}
		uses[user][used] = true
	}
	reaches := func(from *token.File) map[*token.File]bool {
		seen := map[*token.File]bool{}
		for next := slices.Collect(maps.Keys(uses[from])); len(next) > 0; {
			f := next[len(next)-1]
			if next = next[:len(next)-1]; !seen[f] {
				seen[f] = true
				next = slices.AppendSeq(next, maps.Keys(uses[f]))
			}
		}
		return seen
	}
	all := map[*token.File]map[*token.File]bool{}
	for f := range uses {
		all[f] = reaches(f)
	}
	for f, reached := range all {
		n, size := 1, f.LineCount()
		for other := range reached {
			if other != f && all[other][f] {
				n++
				size += other.LineCount()
			}
		}
		if n > 1 {
			files, lines = max(files, n), max(lines, size)
		}
	}
	return files, lines
}
