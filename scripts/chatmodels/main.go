// Command chatmodels writes the project's own models under configs/models.
//
// They are small enough to live in the repository and use what a real model's
// files use. Run it from the root of the repository:
//
//	go run ./scripts/chatmodels
//
// A test checks that the files in the repository are what it writes.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	files, err := modelFiles(*root)
	if err == nil {
		err = write(filepath.Join(*root, "configs", "models"), files)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chatmodels:", err)
		os.Exit(1)
	}
}

func write(dir string, files map[string][]byte) error {
	for name, data := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// modelFiles returns the files of all models by their path under configs/models.
func modelFiles(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	if err := tiny(root, files); err != nil {
		return nil, fmt.Errorf("tiny: %w", err)
	}
	if err := glm(files); err != nil {
		return nil, fmt.Errorf("tiny-glm: %w", err)
	}
	return files, nil
}

// pretty writes JSON as the model hubs do: indented, with characters as they are.
func pretty(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return buf.Bytes(), err
}
