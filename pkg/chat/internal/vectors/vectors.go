// Package vectors finds the folders of expected figures for tests.
package vectors

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dir returns the folder of vectors: SHEAF_VECTORS, or shared/vectors beside the
// repository, whose root is given relative to the test.
func Dir(t testing.TB, root string) string { return find(t, root, "SHEAF_VECTORS", "vectors") }

// Models returns the folder of model files: SHEAF_MODELS, or shared/models beside
// the repository.
func Models(t testing.TB, root string) string { return find(t, root, "SHEAF_MODELS", "models") }

// find fails when a folder that was asked for, by its variable or by -run
// Vectors, is missing. A plain run of all tests needs nothing but Go, so there it
// skips.
func find(t testing.TB, root, variable, name string) string {
	t.Helper()
	dir := os.Getenv(variable)
	asked := dir != ""
	if !asked {
		dir = filepath.Join(root, "..", "shared", name)
		run := flag.Lookup("test.run")
		asked = run != nil && strings.Contains(run.Value.String(), "Vectors")
	}
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	const help = "%s is not a folder: run %s=FOLDER go test ./pkg/chat/... -run Vectors, or make test-models"
	if asked {
		t.Fatalf(help, dir, variable)
	}
	t.Skipf(help, dir, variable)
	return ""
}
