// Package supervise runs a command under a lease: so that nothing of it is left
// when the lease can pass on to somebody else, whatever happens to the process
// that holds the lease.
//
// The holder starts a keeper, a second process of the same program, which starts
// the command. The keeper knows until when the lease lasts. It stops the
// command, and all that the command has started, when it is told to, when that
// moment comes near without an extension (the holder may be frozen), and when
// the holder is gone (the pipe between them is closed). If the keeper is killed
// the kernel kills the command, and the holder kills what that has started.
//
// It needs what Linux offers: see [Supported].
package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Command is what is run.
type Command struct {
	Path string   // of the program: see Find
	Args []string // begins with the program's name
	Env  []string
	// KillAfter is how long after SIGTERM comes SIGKILL; 0: at once, and no SIGTERM. The keeper takes it
	// from the time that the lease still lasts.
	KillAfter time.Duration
	// Reserve is how long before the lease's end all is over.
	Reserve time.Duration
}

// Result is how a command ended.
type Result struct {
	// Code is its exit code, or 128 and the number of the signal that ended it.
	Code int
	// Stopped says why the keeper has stopped it, if it has.
	Stopped string
}

// StartError says that the system could not start the command.
type StartError struct {
	Path string
	Err  syscall.Errno
}

func (e *StartError) Error() string { return fmt.Sprintf("cannot run %s: %v", e.Path, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// The exit codes of env(1) for a command that cannot be run.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// Code is the exit code for an error of Find or Start.
func Code(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return CodeNotFound
	}
	return CodeNotExecutable
}

// Find finds the program that a command names, as a shell does, and how the kernel
// is to run it: see Command. It fails if that can be known not to go.
func Find(command []string) (path string, args []string, err error) {
	if path, err = lookPath(command[0]); err != nil {
		return "", nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // not to wait at a pipe
	if err != nil {
		return path, command, nil // it need not be readable
	}
	defer func() { _ = file.Close() }()
	first := make([]byte, 256) // what the kernel looks at
	n, err := io.ReadFull(file, first)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return path, command, nil
	}
	line, _, _ := bytes.Cut(first[:n], []byte("\n"))
	interpreter, found := bytes.CutPrefix(line, []byte("#!"))
	switch {
	case found:
		name, _, _ := strings.Cut(strings.Trim(string(interpreter), " \t"), " ")
		name, _, _ = strings.Cut(name, "\t")
		if filepath.Base(name) == name { // no PATH is looked at
			name = "./" + name
		}
		if _, err := lookPath(name); err != nil {
			return "", nil, fmt.Errorf("cannot run %s by its interpreter: %w", path, err)
		}
	case bytes.IndexByte(line, 0) < 0:
		// As execvp(3) does: a script without #! is one of sh.
		return shell, append([]string{"sh", path}, command[1:]...), nil
	}
	return path, command, nil
}

const shell = "/bin/sh"

// lookPath is exec.LookPath, but what is found and is not executable is an error of
// its own.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || !errors.Is(err, exec.ErrNotFound) || filepath.Base(name) != name {
		return path, err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return "", &exec.Error{Name: name, Err: os.ErrPermission}
		}
	}
	return path, err
}
