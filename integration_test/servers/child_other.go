//go:build !linux

package servers

import "syscall"

// childAttr puts a child in a process group of its own, out of reach of the
// terminal's Ctrl-C. Only Linux can send it a signal when we die: elsewhere a
// server outlives a test process that was killed.
func childAttr(_ syscall.Signal, as *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as.credential()}
}
