package supervise

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is a clock that all processes share, in nanoseconds. It never goes
// back, and goes on while the machine is suspended.
func bootTime() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // fails for an unknown clock only
	return now.Nano()
}

// bootTimeOf is a moment on that clock. If this process is stopped between the
// two statements the result is too early, never too late.
func bootTimeOf(t time.Time) int64 {
	now := bootTime()
	return now + int64(time.Until(t))
}

// descendants lists the processes that root has started, directly or not, whose
// parents are alive. Those are among them whose end was not waited for: of a
// process whose first thread has ended others may go on.
func descendants(root int) (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := make(map[int][]int)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …, and the name may have parentheses.
		stat := string(text)
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		pid, _ := strconv.Atoi(stat[:strings.IndexByte(stat, ' ')])
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	for next := children[root]; len(next) > 0; {
		list = append(list, next...)
		var below []int
		for _, pid := range next {
			below = append(below, children[pid]...)
		}
		next = below
	}
	return list
}
