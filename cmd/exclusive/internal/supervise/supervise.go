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

// Find finds the program that a command names, as a shell does. It fails if that can
// be known not to go.
func Find(name string) (path string, err error) {
	if path, err = lookPath(name); err != nil {
		if strings.ContainsAny(name, " |&;<>") {
			err = fmt.Errorf("%w; a line of shell is run by sh -c", err)
		}
		return "", err
	}
	interpreter, found := bytes.CutPrefix(firstLine(path), []byte("#!"))
	if !found {
		return path, nil
	}
	by, _, _ := strings.Cut(strings.Trim(string(interpreter), " \t"), " ")
	by, _, _ = strings.Cut(by, "\t")
	if by == "" {
		return path, nil // sh runs it, as a script without #!
	}
	if filepath.Base(by) == by { // no PATH is looked at
		by = "./" + by
	}
	if _, err := lookPath(by); err != nil {
		return "", fmt.Errorf("cannot run %s by its interpreter: %w", path, err)
	}
	return path, nil
}

var errNoFile = errors.New("not a regular file")

// firstLine is that of a file, as far as the kernel looks at it; empty if it cannot be
// read, as it need not.
func firstLine(path string) []byte {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	first := make([]byte, 256)
	n, _ := io.ReadFull(file, first)
	line, _, _ := bytes.Cut(first[:n], []byte("\n"))
	return line
}

// lookPath is exec.LookPath, but what is found and is not executable is an error of
// its own. What is no file the kernel does not run, and to read from it may not end.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return "", errors.Join(err, &exec.Error{Name: name, Err: errNoFile})
		}
		return path, nil
	}
	if !errors.Is(err, exec.ErrNotFound) || filepath.Base(name) != name {
		return path, err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return "", &exec.Error{Name: name, Err: os.ErrPermission}
		}
	}
	return path, err
}
