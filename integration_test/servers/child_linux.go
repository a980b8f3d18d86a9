package servers

import "syscall"

// childAttr puts a child in a process group of its own, out of reach of the
// terminal's Ctrl-C, and has the kernel send it the signal when we die.
func childAttr(signal syscall.Signal, as *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: signal, Credential: as.credential()}
}
