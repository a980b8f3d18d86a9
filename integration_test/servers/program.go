package servers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// place is where server programs are: this machine, or a Debian root on it.
type place struct {
	root string // "" for this machine
}

func startProgram(ctx context.Context, kind Kind, options ...string) (*Server, error) {
	return place{}.start(ctx, kind, options...)
}

// start runs the programs of one kind of server on a temporary directory.
func (p place) start(ctx context.Context, kind Kind, options ...string) (_ *Server, err error) {
	spec := specs[kind]
	account, err := p.account(spec.user)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "exclusive-"+string(kind)+"-")
	if err != nil {
		return nil, err
	}
	plan := spec.plan(p.seenAs(dir), port)
	plan.serve = append(plan.serve, options...)

	// Look for all programs before anything is done.
	argvs := [][]string{plan.serve}
	if plan.setup != nil {
		argvs = [][]string{plan.setup, plan.serve}
	}
	for _, argv := range argvs {
		if argv[0], err = p.find(argv[0], spec); err != nil {
			return nil, errors.Join(unavailable{err}, os.Remove(dir))
		}
	}

	removeDir, err := atExit(`for try in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && exit; sleep 0.3; done; exit 1`, dir)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeDir())
		}
	}()
	if err := writeFiles(dir, plan.files, account); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	explain := func(err error) error {
		return fmt.Errorf("%w; the end of its log:\n%s", err, logTail(log.Name()))
	}

	if plan.setup != nil {
		cmd := p.command(dir, account, plan.stop, plan.setup, log)
		setup, err := startProcess(cmd)
		if err != nil {
			return nil, err
		}
		select {
		case <-setup.exited:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), setup.stop(syscall.SIGKILL))
		}
		if setup.err != nil {
			return nil, explain(fmt.Errorf("%s: %w", plan.setup[0], setup.err))
		}
	}
	serve, err := startProcess(p.command(dir, account, plan.stop, plan.serve, log))
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	dsn, version, err := await(ctx, kind, serve.exited, spec.dsn(address))
	if err != nil {
		return nil, errors.Join(explain(fmt.Errorf("%s: %w", plan.serve[0], err)), serve.stop(plan.stop))
	}
	return &Server{DSN: dsn, Version: version, close: func() error {
		return errors.Join(serve.stop(plan.stop), removeDir())
	}}, nil
}

// seenAs is the name that dir of this machine has for a program in p.
func (p place) seenAs(dir string) string {
	if p.root == "" {
		return dir
	}
	return "/mnt"
}

// find is the path, as seen in p, of the program called name.
func (p place) find(name string, spec spec) (string, error) {
	// The system folders are not in everybody's PATH, but have the servers.
	folders := append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin")
	for _, pattern := range spec.folders {
		versions, err := filepath.Glob(p.root + pattern)
		if err != nil {
			return "", err
		}
		slices.SortFunc(versions, func(a, b string) int { return cmp.Compare(firstNumber(b), firstNumber(a)) })
		for _, folder := range versions {
			folders = append(folders, strings.TrimPrefix(folder, p.root))
		}
	}
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		if _, err := exec.LookPath(p.root + path); err != nil {
			continue
		}
		if spec.check != nil && p.root == "" {
			if err := spec.check(path); err != nil {
				return "", err
			}
		}
		return path, nil
	}
	return "", fmt.Errorf("no program %s in %s", name, strings.Join(append([]string{"PATH"}, spec.folders...), " or "))
}

func firstNumber(s string) int {
	n, err := strconv.Atoi(regexp.MustCompile(`[0-9]+`).FindString(s))
	if err != nil {
		return 0 // no number sorts lowest
	}
	return n
}

// account is a user that root can run programs as.
type account struct{ uid, gid int }

// account looks up the user of that name. It is nil where programs are to run as
// whoever we are.
func (p place) account(name string) (*account, error) {
	if name == "" || os.Geteuid() != 0 {
		return nil, nil
	}
	passwd, err := os.ReadFile(p.root + "/etc/passwd")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(passwd)) {
		field := strings.Split(line, ":")
		if field[0] != name || len(field) < 4 {
			continue
		}
		uid, uidErr := strconv.Atoi(field[2])
		gid, gidErr := strconv.Atoi(field[3])
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("%s/etc/passwd: user %s: %w", p.root, name, err)
		}
		return &account{uid, gid}, nil
	}
	return nil, unavailablef("there is no user %s to run it as", name)
}

// inRoot runs a program in a Debian root on a directory of this machine. The mounts
// are seen by this process alone and vanish with it. The signal has to be asked for
// again after the change of user, which forgets it.
const inRoot = `
root=$1 dir=$2 uid=$3 gid=$4 signal=$5
shift 5
mount --bind "$dir" "$root/mnt"
mount -t proc proc "$root/proc"
exec chroot "$root" setpriv --reuid="$uid" --regid="$gid" --clear-groups --pdeathsig="$(kill -l "$signal")" -- "$@"
`

// command runs argv in p, with dir as its directory. The server gets the signal
// when we die.
func (p place) command(dir string, as *account, signal syscall.Signal, argv []string, log *os.File) *exec.Cmd {
	var cmd *exec.Cmd
	if p.root == "" {
		cmd = exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = childAttr(signal, as)
	} else {
		if as == nil {
			as = &account{os.Getuid(), os.Getgid()}
		}
		args := []string{"--mount", "sh", "-ec", inRoot, "sh",
			p.root, dir, strconv.Itoa(as.uid), strconv.Itoa(as.gid), strconv.Itoa(int(signal))}
		cmd = exec.Command("unshare", append(args, argv...)...)
		cmd.SysProcAttr = childAttr(signal, nil)
	}
	cmd.Dir = dir
	// A folder of its own for temporary files: a MariaDB that starts, also for setup,
	// removes all temporary tables (#sql…) from there, and the one whose they are crashes.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TMPDIR=" + p.seenAs(dir)}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

func writeFiles(dir string, files map[string]string, owner *account) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if owner == nil {
		return nil
	}
	return os.Chown(dir, owner.uid, owner.gid)
}

// freePort picks a port outside of the range that the kernel hands out, so that no
// outgoing connection of a test takes it before the server does.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

func logTail(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return lastLines(log)
}

func lastLines(log []byte) string {
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
}

// process is a child process that ends with this one.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has
	err    error         // why, once it has
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	return p, <-started
}

func (p *process) run(started chan<- error) {
	// The kernel sends the signal that ends the child when the thread dies that
	// started it, so that thread has to live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
		close(p.exited)
	}
}

// stop ends the process with the signal, or by force if that does not work.
func (p *process) stop(signal syscall.Signal) error {
	for _, signal := range []syscall.Signal{signal, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(10 * time.Second):
		}
	}
	return fmt.Errorf("process %d (%s) does not end", p.cmd.Process.Pid, p.cmd.Path)
}

// atExit arranges for a shell script to run when this process ends, even by a
// SIGKILL: the script waits for the end of a pipe that we alone hold open. The
// function that it returns runs it now.
func atExit(script string, args ...string) (func() error, error) {
	cmd := exec.Command("sh", append([]string{"-c", "read -r _; " + script, "sh"}, args...)...)
	cmd.SysProcAttr = childAttr(0, nil) // out of reach of the terminal's Ctrl-C
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		if err := errors.Join(pipe.Close(), cmd.Wait()); err != nil {
			return fmt.Errorf("cleaning up with %q %q: %w", script, args, err)
		}
		return nil
	}, nil
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}
