// Package child runs a part of a test in a process of its own, to stop and kill
// it: the test's binary, told to run one test only.
package child

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// variable tells the process what it is to do.
const variable = "EXCLUSIVE_TEST_CASES_CHILD"

// mark begins the lines that are meant for the parent.
const mark = "child says: "

// Order reports whether this process is a child, and reads its order.
func Order(t testing.TB, order any) bool {
	t.Helper()
	text, ok := os.LookupEnv(variable)
	if ok {
		if err := json.Unmarshal([]byte(text), order); err != nil {
			t.Fatal(err)
		}
	}
	return ok
}

// Say tells the parent.
func Say(what string) { fmt.Println(mark + what) }

// Process is a child.
type Process struct {
	cmd   *exec.Cmd
	said  chan string
	ended chan struct{}
}

// Start runs the named test of this binary with an order. The process is killed
// at the test's end.
func Start(t testing.TB, test string, order any) *Process {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.count=1"), said: make(chan string, 100), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if what, ok := strings.CutPrefix(lines.Text(), mark); ok {
				p.said <- what
			}
		}
		_ = p.cmd.Wait() // killed, most of the time
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
	})
	return p
}

// Await waits until the child says what.
func (p *Process) Await(t testing.TB, what string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case said := <-p.said:
			if said == what {
				return
			}
			t.Logf("the child says %q", said)
		case <-p.ended:
			select { // what it said last
			case said := <-p.said:
				if said == what {
					return
				}
			default:
			}
			t.Fatalf("the child has ended before it said %q: %v", what, p.cmd.ProcessState)
		case <-timeout:
			t.Fatalf("the child does not say %q", what)
		}
	}
}

// Signal sends a signal.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the child at once, and waits until it is gone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGKILL)
	<-p.ended
}

// Wait waits until the child has ended, and returns how.
func (p *Process) Wait(t testing.TB) *os.ProcessState {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatal("the child does not end")
	}
	return p.cmd.ProcessState
}
