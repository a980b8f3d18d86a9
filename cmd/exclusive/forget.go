package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/uniquetask"
)

const forgetHelp = `Forgets RUN, a run of the task TASK, so that it can begin anew: one that is done is done
again, and one that failed too often may be tried again. A run that somebody
works on is not forgotten, unless --release takes it away first. Nor is one that
begins or ends while this command looks at it.

`

const forgetExample = `  exclusive forget report 2026-11-29
  exclusive forget report 2026-11-29 --release`

func forgetCommand(env environment) *cobra.Command {
	var d database
	var release, asJSON bool
	cmd := &cobra.Command{
		Use: "forget TASK RUN", Short: "Forget a run of a task, so that it can begin anew",
		Long: forgetHelp + sqlHelp + takeExit, Example: forgetExample, Args: exactly("the name of the task", "the run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			ctx, task, run := cmd.Context(), args[0], args[1]
			return d.operate(ctx, env, func(k *keys) (err error) {
				t, err := k.tasks(task)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, t.Close()) }()
				r, err := t.Outcome(ctx, run)
				known := r.State != uniquetask.None
				if err == nil && !known {
					err = t.ForgetSeen(ctx, uniquetask.Run{Run: run, GrantID: nobody}) // see there
				}
				if err == nil && release && r.Live {
					// If it has ended meanwhile it is for ForgetSeen to say so.
					if err = t.ReleaseSeen(ctx, r); errors.Is(err, exclusive.ErrLost) {
						err = nil
					}
				}
				if err == nil && known {
					err = t.ForgetSeen(ctx, r)
				}
				err = said(err, k.line, task, run)
				if e := new(exclusive.Error); errors.As(err, &e) && e.Holder != nil {
					return &exitError{exitNo, err} // somebody has it, or had it meanwhile
				}
				if err != nil {
					return err
				}
				var done any // null: nobody knew it
				if known {
					done = runOf(task, r)
				}
				return report(env, asJSON, map[string]any{"forgotten": done}, known, func(w io.Writer, _ map[string]any) error {
					_, err := fmt.Fprintf(w, "forgotten: it was %s, attempt %d by %s\n", runOf(task, r).State, r.Attempt, printable(r.Holder))
					return err
				}, "nobody knows this run; exclusive tasks shows which are known")
			})
		},
	}
	d.databaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&release, "release", false, "take the run away from whoever works on it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what was forgotten as JSON")
	return cmd
}
