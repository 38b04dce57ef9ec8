package main

import (
	"testing"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestUsage(t *testing.T) {
	cases := []struct {
		name string
		args []string
		want int
	}{
		{"no command", nil, exitUsage},
		{"unknown command", []string{"rnu"}, exitUsage},
		{"unknown flag", []string{"run", "x.yaml", "--stepz=1"}, exitUsage},
		{"no such config", []string{"check", "nowhere.yaml"}, exitUsage},
		{"version", []string{"version"}, exitDone},
		{"a model's folder", []string{"check", "../../configs/models/tiny"}, exitDone},
		{"a folder that is no model", []string{"check", "."}, exitUsage},
		{"a family nobody knows", []string{"check", "../../configs/models/tiny", "--family", "nope"}, exitUsage},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := run(tc.args); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
		})
	}
}
