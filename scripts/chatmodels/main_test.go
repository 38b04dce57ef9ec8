package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestCommittedModelsAreWhatTheCommandWrites(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := modelFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, "configs", "models", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("configs/models/%s differs: run go run ./scripts/chatmodels", name)
		}
	}
}
