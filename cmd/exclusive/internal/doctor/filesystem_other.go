//go:build !linux

package doctor

import "runtime"

// fileSystem cannot tell.
func fileSystem(string) (name, kind string) {
	return "doctor cannot tell on " + runtime.GOOS, "unsure"
}
