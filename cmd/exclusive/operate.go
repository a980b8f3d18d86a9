package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// What the commands for operators share: ps, tasks, release, forget and prune.

const (
	// showExit is for those that show, and for prune.
	showExit = `

The exit code is 0 if it was done, also if there was nothing to do, 2 for wrong
flags, 3 if it could not be done, as when the database has not answered for 30 s.`

	// takeExit is for those that take something away.
	takeExit = `

The exit code is 0 if it was done, 1 if it was not, since there is no such thing
or somebody has it who keeps it, 2 for wrong flags, 3 if it could not be done, as
when the database has not answered for 30 s.`
)

// keys is an open database with the strategies whose grants a command can see.
type keys struct {
	open   *target.Open
	line   func(command string, args ...string) string // see target.Line
	db     *database
	leases *fencing.Leases[*sql.Tx] // nil on Redis
	redis  *redisbackend.Leases     // nil on SQL
}

// operate opens the database and has f work on it.
func (d *database) operate(ctx context.Context, env environment, f func(*keys) error) (err error) {
	t, err := d.target(env)
	if err != nil {
		return err
	}
	o, err := t.Open(ctx, 2)
	if err != nil {
		return err
	}
	defer func() { err = operateErr(t, errors.Join(err, o.Close())) }()
	k := &keys{open: o, line: t.Line, db: d}
	if t.IsRedis() {
		if k.redis, err = redisbackend.New(o.Redis, redisbackend.Config{Prefix: d.prefix}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.redis.Close()) }()
		return f(k)
	}
	if k.leases, err = fencing.New(o.Adapter, fencing.Config{Schema: d.schema, Prefix: d.prefix}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.leases.Close()) }()
	return f(k)
}

// operateErr gives an error its exit code and its text, without what is secret.
func operateErr(t *target.Target, err error) error {
	var exit *exitError
	switch {
	case errors.As(err, &exit) && exit.err == nil:
		return err
	case errors.As(err, &exit):
		return &exitError{exit.code, t.Hide(said(exit.err, t.Line, "", ""))}
	case errors.Is(err, exclusive.ErrInvalid):
		return &exitError{exitUsage, t.Hide(said(err, t.Line, "", ""))}
	}
	return t.Hide(said(err, t.Line, "", ""))
}

// tasks opens the runs of a task.
func (k *keys) tasks(task string) (*uniquetask.Tasks[*sql.Tx], error) {
	if k.redis != nil {
		return nil, usageError("Redis keeps no runs; name the database of SQL")
	}
	return uniquetask.New(k.open.Adapter, uniquetask.Config{Task: task, Schema: k.db.schema, Prefix: k.db.prefix})
}

// names lists the tasks.
func (k *keys) names(ctx context.Context) ([]string, error) {
	return uniquetask.Names(ctx, k.open.Adapter, uniquetask.Tables{Schema: k.db.schema, Prefix: k.db.prefix})
}

// either runs what is done to leases and what is done to runs. A database need
// not have the tables of both.
func either(leases, runs func() error) error {
	first := leases()
	if first != nil && !errors.Is(first, exclusive.ErrSchema) {
		return first
	}
	second := runs()
	if second != nil && !errors.Is(second, exclusive.ErrSchema) {
		return second
	}
	if second == nil {
		return nil
	}
	return first // the second has the same remedy
}

// pageSize is how many rows are asked for at once.
const pageSize = 500

// grantJSON is a key or run that somebody holds.
type grantJSON struct {
	Strategy string    `json:"strategy"`
	Name     string    `json:"name"`
	Run      string    `json:"run,omitempty"`
	Holder   string    `json:"holder"`
	Token    int64     `json:"token"`
	Attempt  int       `json:"attempt"`
	Grant    string    `json:"grant"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
}

func leaseOf(strategy string, s exclusive.Status) grantJSON {
	return grantJSON{strategy, s.Key, "", s.Last.Name, s.Last.Token, s.Attempt, s.Last.ID, s.Last.Since.UTC(), s.Last.Expires.UTC()}
}

func runGrant(task string, r uniquetask.Run) grantJSON {
	return grantJSON{"uniquetask", task, r.Run, r.Holder, r.Token, r.Attempt, r.GrantID, r.Started.UTC(), r.Free.UTC()}
}

// oneOf checks the value of a flag.
func oneOf(flag, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return usageError("%s must be one of %s", flag, strings.Trim(strings.Join(allowed, ", "), ", "))
	}
	return nil
}

// pages has page read one page after another. page returns the last key, and
// how many keys it has.
func pages(page func(after string) (last string, n int, err error)) error {
	after := ""
	for {
		last, n, err := page(after)
		if err != nil || n < pageSize {
			return err
		}
		after = last
	}
}

// eachRun lists the runs of some tasks, or of all if none are named.
func (k *keys) eachRun(ctx context.Context, tasks []string, state uniquetask.State, each func(task string, r uniquetask.Run) error) error {
	if len(tasks) == 0 {
		var err error
		if tasks, err = k.names(ctx); err != nil {
			return err
		}
	}
	for _, task := range tasks {
		t, err := k.tasks(task)
		if err != nil {
			return err
		}
		err = pages(func(after string) (string, int, error) {
			runs, err := t.Runs(ctx, uniquetask.Filter{State: state, After: after, Limit: pageSize})
			for _, r := range runs {
				if err := each(task, r); err != nil {
					return after, 0, err
				}
				after = r.Run
			}
			return after, len(runs), err
		})
		if err := errors.Join(err, t.Close()); err != nil {
			return err
		}
	}
	return nil
}

// exactly wants the arguments that are named.
func exactly(what ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(what) {
			return usageError("%d argument(s); this needs %s", len(args), strings.Join(what, " and "))
		}
		return nil
	}
}

// flagSet refuses a flag that is given with nothing, as from a shell's variable
// that is not set.
func flagSet(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flag(name); f.Changed && f.Value.String() == "" {
			return usageError("--%s is empty", name)
		}
	}
	return nil
}

// report writes what was done, and ends with exitNo if something is not true:
// there was nothing to do it to.
func report[T any](env environment, asJSON bool, done T, something bool, text func(io.Writer, T) error, nothing string) error {
	if something || asJSON {
		if err := write(env.stdout, asJSON, done, text); err != nil {
			return err
		}
	}
	switch {
	case something:
		return nil
	case asJSON:
		return &exitError{code: exitNo}
	}
	return &exitError{exitNo, errors.New(nothing)}
}
