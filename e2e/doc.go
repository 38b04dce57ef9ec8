// Package e2e tests the built binaries from outside, as processes that are
// started, signalled and killed. Its tests carry the build tag e2e: make e2e.
package e2e
