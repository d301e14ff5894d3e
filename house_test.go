// Package house_test enforces the architecture: which packages are pure, and
// which way imports point (docs/architecture.md).
package house_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pure packages decide and never wait: no clock, no goroutine, no I/O.
var pure = []string{"queue", "breaker", "affinity", "admission", "replica", "simserver/model", "dashboard/history"}

// impure names what a pure package must not import; time may be imported, but
// not its clock and timers.
var (
	impure = []string{"net", "net/http", "os", "os/exec", "io", "bufio", "sync", "sync/atomic", "context", "log", "log/slog", "math/rand"}
	clocks = []string{"Now", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Since", "Until"}
	// the controller's one mutex is the only sync in the pure packages
	allowed = map[string][]string{"admission": {"sync"}}
)

// mayImport says which packages of the module each package may import; one
// that is missing may import none. cmd may import everything.
var mayImport = map[string][]string{
	"replica":           {"breaker", "affinity"},
	"replica/probe":     {"replica"},
	"replica/gpu":       {"replica"},
	"admission":         {"queue", "replica", "affinity", "breaker"},
	"gateway":           {"admission", "dialect", "replica", "gateway/upstream", "gateway/socket"},
	"gateway/upstream":  {"gateway/socket"},
	"telemetry":         {"admission", "gateway"},
	"dashboard":         {"admission", "telemetry", "dashboard/history"},
	"dashboard/history": {"admission"},
	"simserver":         {"simserver/model"},
	"bench":             {"admission", "replica", "simserver", "simserver/model"},
	"cmd/switchyard":    {"*"},
}

type file struct {
	pkg, name string
	ast       *ast.File
	fset      *token.FileSet
}

// sources parses every non-test file of the module's own packages.
func sources(t *testing.T) []file {
	var out []file
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || ownModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		out = append(out, file{pkg: filepath.ToSlash(filepath.Dir(path)), name: path, ast: f, fset: fset})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, out)
	return out
}

func ownModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func TestPurePackagesHaveNoClockNoGoroutineNoIO(t *testing.T) {
	for _, f := range sources(t) {
		if !slices.Contains(pure, f.pkg) {
			continue
		}
		for _, imp := range f.ast.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			require.False(t, slices.Contains(impure, path) && !slices.Contains(allowed[f.pkg], path),
				"%s imports %s, but %s is pure", f.name, path, f.pkg)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				require.Fail(t, "goroutine in a pure package", "%s", f.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
					require.Fail(t, "clock in a pure package", "%s: time.%s", f.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestImportsPointOneWay(t *testing.T) {
	for _, f := range sources(t) {
		may := mayImport[f.pkg]
		if slices.Contains(may, "*") {
			continue
		}
		for _, imp := range f.ast.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			own, ok := strings.CutPrefix(path, "switchyard/")
			if !ok {
				continue
			}
			require.True(t, slices.Contains(may, own), "%s imports %s; %s may import only %v", f.name, own, f.pkg, may)
		}
	}
}
