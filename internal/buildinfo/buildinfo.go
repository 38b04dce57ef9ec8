// Package buildinfo knows which Sheaf this is.
package buildinfo

import (
	"runtime/debug"
	"strings"
)

// version is the release, set by the linker for a release build.
var version = "0.1.0-dev"

// Version is the version that controller and worker compare at join: the
// release, with the commit where the toolchain recorded one.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return version + "+" + strings.ToLower(s.Value[:min(12, len(s.Value))])
		}
	}
	return version
}
