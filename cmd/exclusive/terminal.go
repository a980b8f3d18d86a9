package main

import (
	"os"

	"github.com/mattn/go-isatty"
)

// isTerminal reports whether a stream of an environment is a terminal, where a
// person sits.
func isTerminal(stream any) bool {
	if o, ok := stream.(*written); ok {
		stream = o.Writer
	}
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
