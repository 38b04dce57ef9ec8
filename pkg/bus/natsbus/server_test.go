package natsbus

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/bus"
)

func TestCheckRoom(t *testing.T) {
	free := func(bytes uint64) func(string, *syscall.Statfs_t) error {
		return func(_ string, st *syscall.Statfs_t) error {
			st.Bsize, st.Bavail = 4096, bytes/4096
			return nil
		}
	}
	cases := []struct {
		name   string
		statfs func(string, *syscall.Statfs_t) error
		is     error
		say    string
	}{
		{"room", free(1 << 30), nil, ""},
		{"full", free(0), bus.ErrFull, "free some space"},
		{"nearly full", free(minRoom - 4096), bus.ErrFull, "free some space"},
		{"gone", func(string, *syscall.Statfs_t) error { return os.ErrNotExist }, os.ErrNotExist, "--fresh"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			err := checkRoom("store", tc.statfs)
			if !errors.Is(err, tc.is) || err != nil && !strings.Contains(err.Error(), tc.say) {
				t.Errorf("got %v", err)
			}
		})
	}
}
