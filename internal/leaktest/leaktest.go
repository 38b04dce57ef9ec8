// Package leaktest checks, after the tests of a package have passed, that no
// goroutine of theirs is left. It is for test files only.
package leaktest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests and the check: func TestMain(m *testing.M) { leaktest.Main(m) }.
func Main(m *testing.M) { goleak.VerifyTestMain(m) }
