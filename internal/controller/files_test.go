package controller

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteWholeLeavesNothingHalfWritten(t *testing.T) {
	cases := []struct {
		name string
		err  error
		say  string
	}{
		{"disk full", syscall.ENOSPC, "free some space"},
		{"quota", syscall.EDQUOT, "free some space"},
		{"read only", syscall.EROFS, "run.out"},
		{"anything else", errors.New("boom"), "boom"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "report.json")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := writeWhole(path, func(w io.Writer) error {
				if _, err := w.Write([]byte("half")); err != nil {
					return err
				}
				return &os.PathError{Op: "write", Path: path, Err: tc.err}
			})
			if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("got %v, want %q in it", err, tc.say)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 {
				t.Errorf("files left: %v %v", entries, err)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
				t.Errorf("the old file reads %q, %v", data, err)
			}
		})
	}
}

func TestMetricsFileGoesOnAtTheNextStep(t *testing.T) {
	line := func(n int) string { return fmt.Sprintf("{\"kind\":\"step\",\"step\":%d}\n", n) }
	opened := "{\"kind\":\"event\",\"event\":\"opened\",\"epoch\":1,\"step\":0}\n"
	cases := []struct {
		name, before, after string
		next                int64
	}{
		{"nothing yet", "", "", 0},
		{"all committed", opened + line(0) + line(1), opened + line(0) + line(1), 2},
		{"the last not committed", opened + line(0) + line(1), opened + line(0), 1},
		{"a line cut short", opened + line(0) + `{"kind":"st`, opened + line(0), 1},
		{"a line without its end", opened + line(0) + strings.TrimSpace(line(1)), opened + line(0), 2},
		{"garbage", opened + "nope\n" + line(0), opened, 1},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "metrics.jsonl")
			if err := os.WriteFile(path, []byte(tc.before), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := openMetrics(dir, tc.next); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != tc.after {
				t.Errorf("got %q %v, want %q", got, err, tc.after)
			}
		})
	}
}
