package sim_test

import (
	"testing"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
