package supervise

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keeperName is the name under which this program is a keeper. It is what a list
// of processes shows.
const keeperName = "exclusive keeper"

// sweep is the first pause between two rounds of SIGKILL, for those who fork.
const sweep = 10 * time.Millisecond

// look is the longest time for which the keeper does not look at the clock,
// which goes on while the machine is suspended.
const look = time.Second

// linger is the longest time that what the command has left behind has to end by
// itself, as the reader of a pipe does that it has written to.
const linger = time.Second

// Keep does not return if this process was started as a keeper.
func Keep() {
	if len(os.Args) < 8 || os.Args[0] != keeperName {
		return
	}
	var n [5]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(os.Args[i+1], 10, 64) // written by Start
	}
	k := &keeper{
		answers:   os.NewFile(uintptr(n[1]), "answers"),
		killAfter: n[2], reserve: n[3], until: n[4],
		told: make(chan message, 16), empty: make(chan struct{}),
	}
	control := os.NewFile(uintptr(n[0]), "control")
	unix.CloseOnExec(int(control.Fd()))
	unix.CloseOnExec(int(k.answers.Fd()))
	k.run(control, os.Args[6], os.Args[7:])
	os.Exit(0)
}

// keeper is the state of the keeper's process. Durations and times are in
// nanoseconds; see bootTime.
type keeper struct {
	answers                   *os.File
	killAfter, reserve, until int64

	mu     sync.Mutex
	pid    int  // of the command, and of its process group
	reaped bool // pid may be somebody else's by now
	status syscall.WaitStatus

	told  chan message
	empty chan struct{} // closed when no process is left
}

type message struct {
	what   byte
	number int64
}

// gone is the message that the holder is gone.
const gone = 0

func (k *keeper) say(format string, args ...any) {
	// If nobody listens, the control pipe says so, too.
	_, _ = fmt.Fprintf(k.answers, format+"\n", args...)
}

func (k *keeper) run(control io.Reader, path string, argv []string) {
	// The kernel signals the command when the thread ends that has started it.
	runtime.LockOSThread()
	deafen()
	// Whoever loses its parent becomes a child of the keeper.
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err == nil {
		foreground := hasTerminal(unix.Getppid())
		if !foreground && onTerminal() {
			// Who reads from the terminal in the background is stopped, and nobody
			// has it go on. This way it is told that it cannot read. Elsewhere the
			// command has the signals as they were: it hands them on to all it starts.
			signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
		}
		attr := &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, 1, 2},
			Sys: &syscall.SysProcAttr{
				Setpgid: true, Pdeathsig: syscall.SIGKILL,
				Foreground: foreground,
			},
		}
		k.say("starting")
		k.pid, err = syscall.ForkExec(path, argv, attr)
		// As execvp(3) does, but for what is no text: what the kernel cannot run is a
		// script of sh. Only the kernel knows that (binfmt_misc).
		if err == syscall.ENOEXEC && isText(path) {
			k.pid, err = syscall.ForkExec(shell, append([]string{"sh", path}, argv[1:]...), attr)
		}
	}
	if err != nil {
		errno, _ := err.(syscall.Errno)
		k.say("failed %d", int(errno))
		return
	}
	k.say("started %d", k.pid)
	go k.listen(control)
	ended := make(chan struct{})
	go k.reap(ended)
	k.watch(ended)
	if k.status.Signaled() {
		k.say("signaled %d", int(k.status.Signal()))
		return
	}
	k.say("exited %d", k.status.ExitStatus())
}

const shell = "/bin/sh"

// isText reports whether a file that the kernel cannot run is a script of sh, and
// not a program for another machine.
func isText(path string) bool { return bytes.IndexByte(firstLine(path), 0) < 0 }

// deafen has the signals that somebody sends to all processes of a service, or
// to the keeper by mistake, do nothing: the holder says when the command is to
// stop. Those that were ignored before stay so, also in the command.
func deafen() {
	nobody := make(chan os.Signal, 1)
	for _, s := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
	} {
		if !signal.Ignored(s) {
			signal.Notify(nobody, s)
		}
	}
}

// listen hands on what the holder tells.
func (k *keeper) listen(control io.Reader) {
	for {
		var b [frame]byte
		if _, err := io.ReadFull(control, b[:]); err != nil {
			k.told <- message{what: gone}
			return
		}
		k.told <- message{b[0], int64(binary.BigEndian.Uint64(b[1:]))}
	}
}

// reap waits for all children, the command and those who have lost their
// parent. When there are none, nothing of the command is left.
func (k *keeper) reap(ended chan<- struct{}) {
	for {
		// It only waits: the pid is still that of the process.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			close(k.empty)
			return
		}
		k.mu.Lock()
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == nil && pid == k.pid {
			k.reaped, k.status = true, syscall.WaitStatus(status)
			close(ended)
		}
		k.mu.Unlock()
	}
}

// stopAt is when to begin to stop what is there. endedAt is when the command ended,
// or 0.
func (k *keeper) stopAt(endedAt int64) int64 {
	at := k.until - k.reserve - k.killAfter
	if endedAt != 0 {
		at = min(at, endedAt+min(int64(linger), k.killAfter))
	}
	return at
}

// watch returns when nothing of the command is left.
func (k *keeper) watch(ended <-chan struct{}) {
	var endedAt, killAt int64 // 0: it has not; not stopping
	begin := func() {
		if killAt != 0 {
			return
		}
		killAt = max(min(bootTime()+k.killAfter, k.until-k.reserve), 1)
		if k.killAfter > 0 {
			k.signalAll(unix.SIGTERM)
			k.signalAll(unix.SIGCONT) // who is stopped sees it only then
		}
	}
	timer, pause := time.NewTimer(0), sweep
	for {
		select {
		case <-k.empty:
			return
		case <-ended:
			ended, endedAt = nil, bootTime()
		case m := <-k.told:
			switch m.what {
			case extend:
				k.until = max(k.until, m.number)
			case forward:
				k.signalGroup(syscall.Signal(m.number))
				if s := syscall.Signal(m.number); s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
					k.signalGroup(syscall.SIGCONT) // who is stopped sees it only then
				}
			case stop:
				if killAt == 0 && endedAt == 0 {
					k.say("stopped because the lease was lost")
				}
				begin()
			case gone:
				begin()
			}
		case <-timer.C:
		}
		now := bootTime()
		if killAt == 0 && now >= k.stopAt(endedAt) {
			if endedAt == 0 {
				k.say("stopped because the lease was about to run out")
			}
			begin()
		}
		switch {
		case killAt == 0:
			timer.Reset(min(time.Duration(k.stopAt(endedAt)-now), look))
		case now < killAt:
			timer.Reset(min(time.Duration(killAt-now), look))
		default:
			k.signalAll(unix.SIGKILL)
			timer.Reset(pause)
			pause = min(2*pause, look) // who does not end now waits for a disk
		}
	}
}

// signalGroup signals the command's process group.
func (k *keeper) signalGroup(s syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.reaped {
		_ = unix.Kill(-k.pid, s)
	}
}

// signalAll signals the group, which nobody can escape by a fork, and all other
// descendants.
func (k *keeper) signalAll(s syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.reaped {
		_ = unix.Kill(-k.pid, s)
	}
	for _, pid := range descendants(os.Getpid()) {
		if group, err := unix.Getpgid(pid); k.reaped || err != nil || group != k.pid {
			_ = unix.Kill(pid, s)
		}
	}
}
