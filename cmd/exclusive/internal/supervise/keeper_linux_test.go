package supervise

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What was left behind has a moment, but never the time to stop in.
func TestStopAt(t *testing.T) {
	const s = int64(time.Second)
	for name, tt := range map[string]struct{ killAfter, endedAt, want int64 }{
		"it runs":                         {10 * s, 0, 89 * s},
		"it has ended":                    {10 * s, 20 * s, 21 * s},
		"it has ended, little time":       {s / 4, 20 * s, 20*s + s/4},
		"it has ended, no time":           {0, 20 * s, 20 * s},
		"it has ended as the lease does":  {10 * s, 89*s - 1, 89 * s},
		"it has ended later than it runs": {10 * s, 95 * s, 89 * s},
	} {
		k := &keeper{until: 100 * s, reserve: s, killAfter: tt.killAfter}
		if got := k.stopAt(tt.endedAt); got != tt.want {
			t.Errorf("%s: %v, not %v", name, time.Duration(got), time.Duration(tt.want))
		}
	}
}

// The machine is suspended while a renewal is under way, or before its end was
// told: the lease is not longer by that.
func TestEndsAcrossSuspend(t *testing.T) {
	const ttl = 60
	e := ends{slept: 1000} // from before the claim, at 0
	for i, tt := range []struct{ asked, slept, want int64 }{
		{0, 1000, 1000 + ttl},
		{20, 1000, 1020 + ttl},
		{40, 8000, 1040 + ttl}, // suspended after it was asked for
		{60, 8000, 8060 + ttl},
		{80, 7990, 8080 + ttl}, // a reading that was interrupted
		{100, 8000, 8100 + ttl},
	} {
		if got := e.next(tt.asked+ttl, tt.slept); got != tt.want {
			t.Errorf("%d: %d, not %d", i, got, tt.want)
		}
	}
}

// The two clocks are those that it says.
func TestEndsNow(t *testing.T) {
	e := ends{slept()}
	before := bootTime()
	end := e.bootTime(time.Now().Add(time.Hour))
	if left := time.Duration(end - before); left > time.Hour+time.Duration(bootTime()-before) || left < 59*time.Minute {
		t.Errorf("an hour is %v", left)
	}
}

// A keeper that has said nothing has started nothing. From "starting" on it may have.
func TestBegan(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"": "the keeper has died before it could start the command", "starting\n": "", "starting\nstarted 4711\n": "",
		"starting\nfailed 8\n": "cannot run x: " + syscall.ENOEXEC.Error(),
	} {
		got := ""
		if err := began(bufio.NewScanner(strings.NewReader(said)), "x"); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, not %q", said, got, want)
		}
	}
}

// What the kernel may know how to run is left to it: an archive of Java by
// binfmt_misc, whose first line has neither #! nor a NUL.
func TestFindLeavesProgramsToTheKernel(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "program.jar")
	if err := os.WriteFile(path, []byte("PK\x03\x04\n\x00\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := Find(path); err != nil || got != path {
		t.Errorf("%q, %v", got, err)
	}
}
