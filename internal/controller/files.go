package controller

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/go-multierror"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// StepDir is the folder of a step, in the run's folder.
func StepDir(run string, n int64) string { return filepath.Join(run, fmt.Sprintf("step-%06d", n)) }

// writeStep writes a step's files, each whole or not at all. The digests are of
// those that depend on stored results alone.
func writeStep(run string, codec *wire.Codec, cfg step.Config, groups []rollout.Group, r *step.Result) (string, []rollout.FileDigest, error) {
	dir := StepDir(run, cfg.Step)
	if err := os.MkdirAll(filepath.Join(dir, "batch"), 0o755); err != nil {
		return "", nil, outputError(err)
	}
	batch := step.NewBatch(cfg, r, step.Whole(r))
	type file struct {
		name string
		body func(io.Writer) error
	}
	all := []file{
		{"samples.jsonl", func(w io.Writer) error { return step.WriteSamples(w, r.Samples) }},
		{"groups.cbor", func(w io.Writer) error { return codec.WriteGroups(w, groups) }},
	}
	for rank := range batch.Ranks() {
		name := filepath.Join("batch", fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, batch.Ranks()))
		all = append(all, file{name, func(w io.Writer) error { return batch.WriteRank(w, rank) }})
	}
	fixed := len(all)
	all = append(all, file{"report.json", func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(r.Report)
	}})
	// Side by side: engines idle until the last file is on the disk.
	files, errs := make([]rollout.FileDigest, len(all)), make([]error, len(all))
	var writing sync.WaitGroup
	for i, f := range all {
		writing.Go(func() {
			files[i].Name = f.name
			files[i].SHA256, errs[i] = writeWhole(filepath.Join(dir, f.name), f.body)
		})
	}
	writing.Wait()
	return dir, files[:fixed], errors.Join(errs...)
}

// writeWhole writes a file under another name, syncs it, and then gives it its
// own. It returns the SHA-256 of what was written.
func writeWhole(path string, body func(io.Writer) error) (sum [32]byte, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return sum, outputError(err)
	}
	defer func() {
		if err != nil {
			err = outputError(errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}()
	digest := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, digest), 1<<20)
	if err := body(w); err != nil {
		return sum, fmt.Errorf("write %s: %w", path, err)
	}
	if err := w.Flush(); err != nil {
		return sum, fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return sum, err
	}
	if err := f.Sync(); err != nil {
		return sum, fmt.Errorf("sync %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return sum, err
	}
	var all *multierror.Error
	all = multierror.Append(all, f.Close())
	all = multierror.Append(all, syncDir(filepath.Dir(path)))
	copy(sum[:], digest.Sum(nil))
	return sum, all.ErrorOrNil()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// outputError says what to do about a file that could not be written.
func outputError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: free some space and start the run again; it goes on from its stored results", err)
	case errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: make the folder writable or choose another with run.out or --out", err)
	default:
		return err
	}
}
