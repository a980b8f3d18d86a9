//go:build !linux

package supervise

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Supported is nil where commands can be run.
var Supported = errors.New("commands can be run under a lease on Linux only: other systems have no means to stop all that a command has started")

// Signals are none here.
func Signals() []os.Signal { return nil }

// Process is a command that runs.
type Process struct{}

// Keep does nothing here.
func Keep() {}

// Start returns Supported.
func Start(Command, time.Time, *os.File, *os.File, *os.File) (*Process, error) {
	return nil, Supported
}

// Extend does nothing here.
func (p *Process) Extend(time.Time) {}

// Signal does nothing here.
func (p *Process) Signal(syscall.Signal) {}

// Stop does nothing here.
func (p *Process) Stop() {}

// Kill does nothing here.
func (p *Process) Kill() {}

// Done is closed.
func (p *Process) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// Wait returns Supported.
func (p *Process) Wait() (Result, error) { return Result{}, Supported }
