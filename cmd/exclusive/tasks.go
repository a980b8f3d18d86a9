package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/uniquetask"
)

const tasksHelp = `Shows the runs of tasks that are remembered, of one task or of all: those done,
those that failed, and those under way. A run is "lost" if its holder's heartbeat
is missing: the next who wants it takes it over. They are in the order in which
they began, their latest attempts, and the last 20 of each task if --last does not
say otherwise. With --json there are all, also the earlier attempts of each run.
NAME is that of a task.

`

const tasksExample = `  exclusive tasks
  exclusive tasks report --state failed
  exclusive tasks report --last 7 --json`

// runJSON is a run of a task.
type runJSON struct {
	Task    string        `json:"task"`
	Run     string        `json:"run"`
	State   string        `json:"state"`
	Attempt int           `json:"attempt"`
	Token   int64         `json:"token"`
	Holder  string        `json:"holder"`
	Grant   string        `json:"grant"`
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended,omitzero"`
	Free    time.Time     `json:"free,omitzero"` // when it may begin again
	Error   string        `json:"error,omitempty"`
	Earlier []attemptJSON `json:"earlier,omitempty"`
}

type attemptJSON struct {
	State   string    `json:"state"`
	Attempt int       `json:"attempt"`
	Token   int64     `json:"token"`
	Holder  string    `json:"holder"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Error   string    `json:"error,omitempty"`
}

func runOf(task string, r uniquetask.Run) runJSON {
	j := runJSON{
		Task: task, Run: r.Run, State: string(r.State), Attempt: r.Attempt, Token: r.Token, Holder: r.Holder, Grant: r.GrantID,
		Started: r.Started.UTC(), Ended: r.Ended, Error: r.Err,
	}
	if !r.Ended.IsZero() {
		j.Ended = r.Ended.UTC()
	}
	switch {
	case r.State == uniquetask.Running && !r.Live:
		j.State, j.Free = string(uniquetask.Lost), r.Free.UTC()
	case r.State != uniquetask.Done:
		j.Free = r.Free.UTC()
	}
	for _, a := range r.Earlier {
		j.Earlier = append(j.Earlier, attemptJSON{string(a.State), a.Attempt, a.Token, a.Holder, a.Started.UTC(), a.Ended.UTC(), a.Err})
	}
	return j
}

// tasksLast is how many runs of a task people are shown if they do not say.
const tasksLast = 20

// tasks lists runs.
type tasks struct {
	database
	state   string
	last    int
	lastSet bool // the user's own limit
	watch   time.Duration
	asJSON  bool
}

func tasksCommand(env environment) *cobra.Command {
	var l tasks
	cmd := &cobra.Command{
		Use: "tasks [NAME…]", Short: "Show the runs of tasks that are remembered", Long: tasksHelp + sqlHelp + durationHelp + showExit,
		Example: tasksExample, Args: watchApart,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			if err := oneOf("--state", l.state, "", "running", "lost", "failed", "done"); err != nil {
				return err
			}
			if l.lastSet = cmd.Flags().Changed("last"); !l.lastSet && l.asJSON {
				l.last = 0
			}
			if l.last < 0 || l.watch < 0 {
				return usageError("--last and --watch must not be negative")
			}
			ctx := cmd.Context()
			return l.operate(ctx, env, func(k *keys) error {
				if k.redis != nil {
					return usageError("Redis keeps no runs; name the database of SQL")
				}
				return watch(ctx, env, l.watch, l.asJSON, func(w io.Writer) error { return l.show(ctx, k, names, w) })
			})
		},
	}
	l.databaseFlags(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&l.state, "state", "", "only runs that are running, lost, failed or done")
	flags.IntVar(&l.last, "last", tasksLast, "only that many runs of each task, those that began last; 0: all (default with --json: all)")
	watchFlag(flags, &l.watch)
	flags.BoolVar(&l.asJSON, "json", false, "write a JSON list")
	completeValues(cmd, "state", "running", "lost", "failed", "done")
	return cmd
}

func (l *tasks) show(ctx context.Context, k *keys, names []string, w io.Writer) error {
	state := uniquetask.State(l.state)
	if state == uniquetask.Lost {
		state = uniquetask.Running
	}
	list, begin := []runJSON{}, 0 // of the task
	var more []string             // tasks of which there is more than is shown
	err := k.eachRun(ctx, names, state, func(task string, r uniquetask.Run) error {
		if begin < len(list) && list[begin].Task != task {
			begin = len(list)
		}
		j := runOf(task, r)
		if l.state != "" && l.state != j.State {
			return nil
		}
		at := len(list)
		for at > begin && list[at-1].Started.After(j.Started) {
			at--
		}
		list = slices.Insert(list, at, j)
		if l.last > 0 && len(list)-begin > l.last {
			list = slices.Delete(list, begin, begin+1)
			if !slices.Contains(more, task) {
				more = append(more, task)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return write(w, l.asJSON, list, func(w io.Writer, list []runJSON) error {
		if err := writeRuns(w, list); err != nil || l.lastSet || more == nil {
			return err
		}
		_, err := fmt.Fprintf(w, "\nThere are more runs of %s: only the %d of each task that began last are shown. All: --last 0\n", printable(strings.Join(more, ", ")), l.last)
		return err
	})
}

func writeRuns(w io.Writer, list []runJSON) error {
	rows := [][]string{{"TASK", "RUN", "STATE", "ATTEMPT", "HOLDER", "STARTED", "ENDED", "FREE", "ERROR"}}
	for _, r := range list {
		rows = append(rows, []string{r.Task, r.Run, r.State, strconv.Itoa(r.Attempt), r.Holder, stamp(r.Started), stamp(r.Ended), stamp(r.Free), r.Error})
	}
	return writeTable(w, rows)
}
