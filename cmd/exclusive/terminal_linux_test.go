package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// terminal opens a pseudo-terminal: what is written to keyboard can be read from
// screen, which is the terminal.
func terminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	var unlock, number int32
	for _, call := range []struct {
		request uintptr
		value   *int32
	}{{syscall.TIOCSPTLCK, &unlock}, {syscall.TIOCGPTN, &number}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, keyboard.Fd(), call.request, uintptr(unsafe.Pointer(call.value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	return keyboard, screen
}

// On a terminal it asks, takes numbers and names, and asks again after an answer
// that is none.
func TestChooseOnATerminal(t *testing.T) {
	t.Parallel()
	keyboard, screen := terminal(t)
	// What the terminal shows, until the command has ended.
	shown := make(chan string)
	go func() {
		var all strings.Builder
		answers := []string{"1", "mariadb", "7", "", "1", "2", "2"}
		r := bufio.NewReader(keyboard)
		for len(answers) > 0 {
			c, err := r.ReadByte()
			if err != nil {
				break
			}
			all.WriteByte(c)
			if strings.HasSuffix(all.String(), "\n> ") {
				if _, err := keyboard.WriteString(answers[0] + "\n"); err != nil {
					break
				}
				answers = answers[1:]
			}
		}
		shown <- all.String()
	}()
	var out bytes.Buffer
	env := environment{stdin: screen, stdout: &out, stderr: screen, getenv: func(string) string { return "" }}
	code := dispatch(t.Context(), env, []string{"choose"})
	text := <-shown
	if code != exitOK || !strings.HasPrefix(out.String(), "fencing\n") || !strings.Contains(out.String(), "mysqldb") {
		t.Errorf("exit code %d\n%s\n%s", code, out.String(), text)
	}
	if strings.Count(text, "A number from 1 to 2 or the word beside it, please.") != 2 || !strings.Contains(text, "Question 5 of at most 5") {
		t.Errorf("it showed\n%s", text)
	}
}

// Ctrl-C ends the questions.
func TestChooseInterrupted(t *testing.T) {
	t.Parallel()
	_, screen := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if code := dispatch(ctx, environment{stdin: screen, stdout: &out, stderr: screen}, []string{"choose"}); code != exitFailed || out.Len() > 0 {
		t.Errorf("exit code %d\n%s", code, out.String())
	}
}

// A bar is drawn where somebody sees it, and wiped away.
func TestBenchOnATerminal(t *testing.T) {
	t.Parallel()
	keyboard, screen := terminal(t)
	shown := make(chan string)
	go func() {
		var all strings.Builder
		r := bufio.NewReader(keyboard)
		for !strings.HasSuffix(all.String(), "100% fencing\r\x1b[K") {
			c, err := r.ReadByte()
			if err != nil {
				break
			}
			all.WriteByte(c)
		}
		shown <- all.String()
	}()
	var out bytes.Buffer
	env := environment{stdout: &out, stderr: screen, getenv: func(string) string { return "" }}
	code := dispatch(t.Context(), env, strings.Fields("bench --duration 10ms --workers 2 --strategy fencing --dsn sqlite://"+t.TempDir()+"/app.db"))
	_ = screen.Close() // if the bar has not ended, the reader does
	if text := <-shown; code != exitOK || !strings.Contains(text, "[####") || strings.Contains(out.String(), "[#") {
		t.Errorf("exit code %d, it showed %q", code, text)
	}
}

// onTerminal has a script of sh run the command, as "$0" "$@", on a terminal of its
// own at which somebody types, and returns what that shows.
func onTerminal(t *testing.T, typed, script string, args ...string) string {
	t.Helper()
	keyboard, screen := terminal(t)
	dsn, _ := sqliteFile(t)
	cmd := self(t, dsn, args...)
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", script, this}, cmd.Args[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen, screen, screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := keyboard.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	_ = screen.Close()
	shown, _ := io.ReadAll(keyboard) // ends with an error when nobody has the terminal
	return string(shown)
}

// A command may read from the terminal that run was started on, and the script
// that started it may do so afterwards.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	const ask = "read answer; echo got $answer"
	shown := onTerminal(t, "one\ntwo\n", `"$0" "$@"; `+ask, "run", "--name", "n", "sh", "-c", ask)
	if !strings.Contains(shown, "got one") || !strings.Contains(shown, "got two") {
		t.Errorf("it showed %q", shown)
	}
}

// Where the output is piped it is the other program of the pipe, as a pager, that
// reads from the terminal. The command is told that it cannot, and is not stopped.
func TestRunInAPipeOnATerminal(t *testing.T) {
	t.Parallel()
	const command = "if read answer; then echo $answer; else echo nothing; fi; until test -e read; do sleep 0.01; done"
	const pager = `{ read line; read answer </dev/tty; echo >read; echo the command got $line, the pager got $answer; }`
	shown := onTerminal(t, "one\n", `"$0" "$@" | `+pager, "run", "--name", "n", "sh", "-c", command)
	if !strings.Contains(shown, "the command got nothing, the pager got one") {
		t.Errorf("it showed %q", shown)
	}
}

// Output into a file leaves the terminal to the command, which may ask for a password.
func TestRunIntoAFileOnATerminal(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`"$0" "$@" >file; cat file`, `"$0" "$@" >/dev/null`} {
		shown := onTerminal(t, "one\n", script, "run", "--name", "n", "sh", "-c", "read answer; echo got $answer; echo got $answer >&2")
		if n := strings.Count(shown, "got one"); n != 1+strings.Count(script, "cat") {
			t.Errorf("%s showed %q", script, shown)
		}
	}
}

// What reads from a terminal is told that it cannot, and not stopped, only where
// there is one: all that the command starts inherits this.
func TestRunWithoutTerminalIgnoresNothing(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	ignored := func(args ...string) string {
		cmd := self(t, dsn, append(args, "grep", "SigIgn", "/proc/self/status")...)
		if args == nil {
			cmd.Path, cmd.Args = "/bin/grep", []string{"grep", "SigIgn", "/proc/self/status"}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // away from any terminal
		code, stdout, stderr := output(t, cmd)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return stdout
	}
	if with, without := ignored("run", "--name", "n"), ignored(); with != without {
		t.Errorf("under run %s, without it %s", with, without)
	}
}
