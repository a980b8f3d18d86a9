package supervise

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supported is nil where commands can be run.
var Supported error

// What the holder tells the keeper: one byte and a number.
const (
	extend  = 'E' // until when the lease lasts, see bootTime
	forward = 'S' // a signal for the command
	stop    = 'T'

	frame = 9
)

// Signals are those that the command gets when the holder does. What this
// process was told to ignore is not among them.
func Signals() (list []os.Signal) {
	for _, s := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// Process is a command that runs. Its methods are safe for concurrent use.
type Process struct {
	keeper *exec.Cmd

	mu      sync.Mutex
	control *os.File
	ends    ends

	terminal bool // the command's group has it, as this one had

	done   chan struct{}
	result Result
	err    error
}

// starting is held while there is a file that a keeper inherits.
var starting sync.Mutex

// Start starts a command under a lease that lasts until then. The command has
// the standard files given, and whatever else this process has inherited. This
// process should have no other children: when the keeper is killed they end,
// too.
//
// The keeper is this program again: its main must begin with Keep.
func Start(c Command, until time.Time, stdin, stdout, stderr *os.File) (*Process, error) {
	// Whoever loses its parent becomes a child of this process, and can be
	// found, if the keeper is killed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	p := &Process{done: make(chan struct{}), terminal: hasTerminal(os.Getpid()), ends: ends{slept()}}
	answers, err := p.start(c, until, stdin, stdout, stderr)
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	lines := bufio.NewScanner(answers)
	if err = began(lines, c.Path); err == nil {
		go p.follow(lines, answers)
		return p, nil
	}
	_ = answers.Close()
	_ = p.control.Close()
	_ = p.keeper.Wait()
	return nil, err
}

// began returns nil if the command was started, or may have been.
func began(lines *bufio.Scanner, path string) error {
	if !lines.Scan() || lines.Text() != "starting" {
		return errors.New("the keeper has died before it could start the command")
	}
	// The command may kill the keeper, its parent, before that can say "started".
	// So from here on a keeper without an answer is one that was killed later: see follow.
	lines.Scan()
	word, number, _ := strings.Cut(lines.Text(), " ")
	if word != "failed" {
		return nil
	}
	n, _ := strconv.Atoi(number)
	return &StartError{Path: path, Err: syscall.Errno(n)}
}

// start starts the keeper, and returns what it is going to say.
func (p *Process) start(c Command, until time.Time, stdin, stdout, stderr *os.File) (answers *os.File, err error) {
	control, toKeeper, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	answers, fromKeeper, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, toKeeper.Close())
	}
	defer func() { _ = fromKeeper.Close() }()
	// Not as ExtraFiles: those would take the place of what the command is to
	// inherit. The numbers are free, since they are ours.
	starting.Lock()
	defer starting.Unlock()
	for _, file := range []*os.File{control, fromKeeper} {
		if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, errors.Join(err, toKeeper.Close(), answers.Close())
		}
	}
	p.keeper = &exec.Cmd{
		Path: "/proc/self/exe", // also after an upgrade
		Args: append([]string{
			keeperName,
			strconv.Itoa(int(control.Fd())), strconv.Itoa(int(fromKeeper.Fd())),
			strconv.FormatInt(int64(c.KillAfter), 10), strconv.FormatInt(int64(c.Reserve), 10),
			strconv.FormatInt(p.ends.bootTime(until), 10), c.Path,
		}, c.Args...),
		Env: c.Env, Stdin: stdin, Stdout: stdout, Stderr: stderr,
		// Out of reach of the terminal's Ctrl-C: that is forwarded once.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	p.control = toKeeper
	if err := p.keeper.Start(); err != nil {
		return nil, errors.Join(err, toKeeper.Close(), answers.Close())
	}
	return answers, nil
}

// follow waits for the end.
func (p *Process) follow(lines *bufio.Scanner, answers *os.File) {
	defer close(p.done)
	told := false
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.Atoi(rest)
		switch word {
		case "stopped":
			p.result.Stopped = rest
		case "exited":
			told, p.result.Code = true, n
		case "signaled":
			told, p.result.Code = true, 128+n
		}
	}
	_ = answers.Close()
	_ = p.keeper.Wait() // it has told what there is to tell
	if p.terminal {
		takeTerminal()
	}
	if !told {
		killOrphans()
		p.result.Code = 128 + int(syscall.SIGKILL)
		p.err = errors.New("the keeper of the command was killed, and the command with it: it may have run")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.control.Close()
}

// hasTerminal reports whether standard input is a terminal from which the process may
// read, and which it need not leave to others: where the output goes into a pipe, as to
// a pager, it is they who read from it. One that goes into a file has no such reader.
func hasTerminal(pid int) bool {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return false
	}
	reader, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || reader != group {
		return false
	}
	var output unix.Stat_t
	if err := unix.Fstat(1, &output); err != nil {
		return true // it is closed
	}
	kind := output.Mode & unix.S_IFMT
	return kind != unix.S_IFIFO && kind != unix.S_IFSOCK
}

// onTerminal reports whether the process has a controlling terminal.
func onTerminal() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(tty)
	return true
}

// takeTerminal gives the terminal to this process's group again, for a shell that
// does not do so by itself.
func takeTerminal() {
	// Otherwise the kernel stops who changes it from the background.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, unix.Getpgrp())
}

// killOrphans ends what a keeper that was killed has left to this process.
func killOrphans() {
	self := os.Getpid()
	for {
		left := descendants(self)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		time.Sleep(sweep)
	}
}

func (p *Process) tell(what byte, number int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(what, number)
}

// write is tell. The caller holds mu.
func (p *Process) write(what byte, number int64) {
	var b [frame]byte
	b[0] = what
	binary.BigEndian.PutUint64(b[1:], uint64(number))
	_, _ = p.control.Write(b[:]) // a keeper that is gone is noticed by follow
}

// Extend says until when the lease lasts by now. It was renewed after the last
// Extend, or Start.
func (p *Process) Extend(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(extend, p.ends.bootTime(until))
}

// Signal sends a signal to the command's process group.
func (p *Process) Signal(s syscall.Signal) { p.tell(forward, int64(s)) }

// Stop stops the command and all that it has started: SIGTERM, and SIGKILL.
func (p *Process) Stop() { p.tell(stop, 0) }

// Kill ends all at once, the keeper as well: for one that does not answer.
func (p *Process) Kill() {
	for _, pid := range append(descendants(p.keeper.Process.Pid), p.keeper.Process.Pid) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// Done is closed when nothing of the command is left.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the command ended, when nothing of it is left. The error is
// one of this package, and not that the command has failed.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return p.result, p.err
}
