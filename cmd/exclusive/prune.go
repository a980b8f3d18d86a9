package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const pruneHelp = `Removes what is old: runs of tasks that ended that long ago, and the rows of keys
that nobody has had for that long, at least an hour. Nothing that a grant or a
mark at a destination needs is removed, and tokens do not come back. But a run
that was removed is done again if somebody asks for it, so choose a time after
which nobody does. Rows of keys with tokens past the sequence are kept; if these
are many, see what exclusive doctor says of tokens.

AGE is a number of days of 24 hours, as 90d, or a duration, as 36h or 1h30m.

Rows are removed a few hundred at a time, and no others are locked. It can be
interrupted: what was removed stays so.

`

const pruneExample = `  exclusive prune --older-than 90d
  exclusive prune --older-than 2160h --task report --json`

// pruned is what prune has removed.
type pruned struct {
	Leases int64            `json:"leases"`
	Runs   map[string]int64 `json:"runs"` // by task
}

func pruneCommand(env environment) *cobra.Command {
	var d database
	var age days
	var only []string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "prune --older-than AGE", Short: "Remove runs and keys that nobody asks for any more",
		Long: pruneHelp + sqlHelp + showExit, Example: pruneExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			if !cmd.Flags().Changed("older-than") {
				return usageError("--older-than is missing, such as --older-than 90d")
			}
			ctx := cmd.Context()
			return d.operate(ctx, env, func(k *keys) error {
				if k.redis != nil {
					return usageError("Redis removes leases by itself, and counters must stay; there is nothing to prune")
				}
				done := pruned{Runs: make(map[string]int64)}
				sofar := func(what string, n int64) {
					if isTerminal(env.stderr) {
						fmt.Fprintf(env.stderr, "\r%s: %d removed so far\x1b[K\r", printable(what), n)
					}
				}
				err := k.prune(ctx, time.Duration(age), only, &done, sofar, func(what string, n int64) {
					if !asJSON {
						fmt.Fprintf(env.stdout, "%s: %d removed\n", printable(what), n)
					}
				})
				if asJSON {
					return errors.Join(err, encodeJSON(env.stdout, done))
				}
				return err
			})
		},
	}
	d.databaseFlags(cmd.Flags())
	cmd.Flags().Var(&age, "older-than", "how long ago it ended, such as 90d or 36h (needed)")
	cmd.Flags().StringArrayVar(&only, "task", nil, "only runs of this task, which may be given again for more, and no keys")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what was removed as JSON")
	return cmd
}

// prune removes what is old, and tells after each batch and after each step.
func (k *keys) prune(ctx context.Context, age time.Duration, only []string, done *pruned, sofar, told func(what string, n int64)) error {
	leases := func() error {
		n, err := k.leases.Prune(ctx, age, func(n int64) { sofar("keys", n) })
		done.Leases += n
		if n > 0 || err == nil {
			told("keys", n)
		}
		return err
	}
	runs := func() error {
		names := only
		if names == nil {
			var err error
			if names, err = k.names(ctx); err != nil {
				return err
			}
		}
		for _, task := range names {
			t, err := k.tasks(task)
			if err != nil {
				return err
			}
			n, err := t.Prune(ctx, age, func(n int64) { sofar("runs of "+task, n) })
			done.Runs[task] += n
			if n > 0 || err == nil {
				told("runs of "+task, n)
			}
			if err := errors.Join(err, t.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	if only != nil {
		return runs()
	}
	return either(leases, runs)
}

// days is a duration that may be written in days of 24 hours.
type days time.Duration

// String implements pflag.Value.
func (d *days) String() string {
	if *d == 0 {
		return "" // there is no default
	}
	return time.Duration(*d).String()
}

// Type implements pflag.Value.
func (d *days) Type() string { return "age" }

// Set implements pflag.Value.
func (d *days) Set(s string) error {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		number, err := strconv.ParseUint(n, 10, 16)
		*d = days(time.Duration(number) * 24 * time.Hour)
		return err
	}
	age, err := time.ParseDuration(s)
	*d = days(age)
	return err
}
