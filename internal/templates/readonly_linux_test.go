package templates

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// A folder that may not be written to is told, and stays as it is.
func TestReadOnlyFolder(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "exclusive-readonly-") // where others may look into it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "0001_a.up.sql"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	copied := make(chan error)
	go func() {
		// Root may write everywhere. So the thread is another user's for files,
		// and ends with this goroutine since it stays locked to it.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			const nobody = 65534
			syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
		}
		_, err := Copy(t.Context(), options(dir))
		copied <- err
	}()
	if err := <-copied; err == nil || !strings.Contains(err.Error(), "cannot be written to, nothing was copied") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	if got := namesOf(t, dir); len(got) != 1 {
		t.Errorf("left %q", got)
	}
}
