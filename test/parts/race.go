package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// packages returns the packages with tests that patterns match, without those that run the
// binary: with race those that the race detector can find something in, else the others.
func packages(patterns []string, race bool) ([]string, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var names []string
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return names, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		whole := strings.HasPrefix(p.ImportPath, "weir/test/e2e") || p.ImportPath == "weir/test/hostile" // a part of its own
		if whole || len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		shares, err := p.any(p.GoFiles, sharing)
		if err != nil {
			return nil, err
		}
		if shares == race {
			names = append(names, p.ImportPath)
		}
	}
}

// any reports whether one of a package's files has something.
func (p *listed) any(names []string, has func(*ast.File) bool) (bool, error) {
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		if has(file) {
			return true, nil
		}
	}
	return false, nil
}

// sharing reports whether a file starts goroutines, or holds channels, locks or atomics, so
// that goroutines may meet in it. Package sync's Once and its kin do not count, as a package
// without goroutines has them to make a table when it is first asked for.
func sharing(file *ast.File) (found bool) {
	for _, i := range file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if strings.HasPrefix(path, "sync/") || strings.HasPrefix(path, "golang.org/x/sync/") {
			return true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.ChanType:
			found = true
		case *ast.SelectorExpr:
			found = found || named(n, "sync") && !strings.HasPrefix(n.Sel.Name, "Once")
		}
		return !found
	})
	return found
}

func named(s *ast.SelectorExpr, pkg string) bool {
	name, ok := s.X.(*ast.Ident)
	return ok && name.Name == pkg
}
