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
		{"no server named", nil, exitUsage},
		{"unknown flag", []string{"--nats", "nats://127.0.0.1:9", "--slotz=1"}, exitUsage},
		{"no server there", []string{"--nats", "nats://127.0.0.1:9", "--wait", "1ms"}, exitFailed},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := run(tc.args); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
		})
	}
}
