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
func bootTime() int64 { return clock(unix.CLOCK_BOOTTIME) }

func clock(id int32) int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(id, &now) // fails for an unknown clock only
	return now.Nano()
}

// slept is for how long the machine has been suspended. If this process is stopped
// between the two readings it is less.
func slept() int64 {
	boot := bootTime()
	return boot - clock(unix.CLOCK_MONOTONIC)
}

// ends makes moments of bootTime of the ends of a lease, which are by a clock that
// stops while the machine is suspended. So it has to be known for how long it had
// been when the lease was asked for: not more than this, which is from before that.
// (A lease's first end is an exception: a suspend between the answer to the claim
// and the command's start is taken for one before the claim.)
type ends struct{ slept int64 }

func (e *ends) bootTime(until time.Time) int64 {
	now := clock(unix.CLOCK_MONOTONIC) // first: what is left is rather less
	return e.next(now+int64(time.Until(until)), slept())
}

// next is bootTime for an end on the clock that stops. slept is of the present.
func (e *ends) next(until, slept int64) int64 {
	end := until + e.slept
	e.slept = max(e.slept, slept)
	return end
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
