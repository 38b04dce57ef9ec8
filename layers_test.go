package sheaf_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sheaf-rl/sheaf/"

// mayImport is the import order: every folder with Go code has a row with the
// folders of ours that it may import. Imports go down only (docs/design.md).
var mayImport = map[string][]string{
	"pkg/rollout": nil,

	"internal/buildinfo":   nil,
	"internal/failpoint":   nil,
	"internal/leaktest":    nil,
	"internal/proc":        nil,
	"internal/safetensors": nil,

	"pkg/chat/internal/unidata":  nil,
	"pkg/chat/internal/jsonscan": nil,
	"pkg/chat/internal/vectors":  nil, // tests only
	"pkg/chat/internal/cputime":  nil, // tests only
	"pkg/chat/bpe":               {"pkg/chat/internal/unidata", "pkg/chat/internal/jsonscan"},
	"pkg/chat/jinja":             {"pkg/chat/internal/unidata", "pkg/chat/internal/jsonscan"},

	"pkg/engine":      {"pkg/rollout"},
	"pkg/chat":        {"pkg/rollout"},
	"pkg/prompt":      {"pkg/rollout"},
	"pkg/reward":      {"pkg/rollout"},
	"pkg/step":        {"pkg/rollout", "internal/safetensors"},
	"pkg/wire":        {"pkg/rollout"},
	"pkg/bus":         {"pkg/rollout"},
	"internal/config": {"pkg/rollout"},

	"pkg/engine/sglang":  {"pkg/engine", "pkg/rollout"},
	"pkg/engine/pool":    {"pkg/engine", "pkg/rollout"},
	"pkg/engine/sim":     {"pkg/chat", "pkg/rollout", "internal/safetensors"},
	"pkg/session":        {"pkg/engine", "pkg/chat", "pkg/rollout"},
	"pkg/session/server": {"pkg/session", "pkg/engine", "pkg/chat", "pkg/rollout"},
	"pkg/feed":           {"pkg/step", "pkg/wire", "pkg/rollout"},
	"pkg/bus/natsbus":    {"pkg/bus", "pkg/wire", "pkg/rollout", "internal/failpoint"},

	"internal/worker":     {"pkg/bus", "pkg/chat", "pkg/engine", "pkg/reward", "pkg/session", "pkg/rollout", "internal/proc"},
	"internal/controller": {"pkg/bus", "pkg/step", "pkg/wire", "pkg/rollout"},
}

// wiring lists the folders that may import anything: they name the adapters.
var wiring = []string{"cmd", "examples", "scripts", "e2e"}

// owners lists the folders that alone may import a library.
var owners = map[string][]string{
	"github.com/nats-io/": {"pkg/bus/natsbus"},
}

func TestLayers(t *testing.T) {
	seen := map[string]bool{}
	// The files are parsed here, not listed by the go command: so they are inputs
	// of this test, and a stale pass is not served from the cache.
	eachFile(t, func(folder, path string, f *ast.File) {
		if isWiring(folder) {
			return
		}
		allowed, ok := mayImport[folder]
		if !ok && !seen[folder] {
			t.Errorf("%s has no row in mayImport", folder)
		}
		seen[folder] = true
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if dep, ours := strings.CutPrefix(imp, module); ours && !slices.Contains(allowed, dep) && !strings.HasPrefix(dep, folder+"/") {
				t.Errorf("%s imports %s, which is not below it", path, dep)
			}
			for prefix, only := range owners {
				if strings.HasPrefix(imp, prefix) && !slices.Contains(only, folder) {
					t.Errorf("%s imports %s, which is for %v alone", path, imp, only)
				}
			}
		}
	})
	for folder := range mayImport {
		if !seen[folder] {
			t.Errorf("mayImport has a row for %s, which has no code", folder)
		}
	}
}

func TestEveryPackageSaysWhatItOwns(t *testing.T) {
	doc := map[string]string{}
	eachFile(t, func(folder, _ string, f *ast.File) {
		doc[folder] += f.Doc.Text()
	})
	for folder, text := range doc {
		if len(text) < 40 {
			t.Errorf("%s: package comment is %q", folder, text)
		}
	}
}

func eachFile(t *testing.T, visit func(folder, path string, f *ast.File)) {
	t.Helper()
	for _, root := range []string{"cmd", "pkg", "internal", "scripts", "e2e"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			visit(filepath.ToSlash(filepath.Dir(path)), filepath.ToSlash(path), f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func isWiring(folder string) bool {
	return slices.ContainsFunc(wiring, func(root string) bool {
		return folder == root || strings.HasPrefix(folder, root+"/")
	})
}
