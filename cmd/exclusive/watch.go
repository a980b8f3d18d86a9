package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func watchFlag(flags *pflag.FlagSet, watch *time.Duration) {
	flags.DurationVar(watch, "watch", 0, "show it again and again, as with --watch=1s (--watch alone: 2s; default: once)")
	flags.Lookup("watch").NoOptDefVal = "2s"
}

// watchApart refuses a value of --watch that stands apart from it: it would be
// an argument of its own, such as the name of a task.
func watchApart(cmd *cobra.Command, args []string) error {
	if !cmd.Flag("watch").Changed {
		return nil
	}
	for _, arg := range args {
		if _, err := time.ParseDuration(arg); err == nil {
			return usageError("write --watch=%s", arg)
		}
	}
	return nil
}

// watch shows something once, or until ctx ends.
func watch(ctx context.Context, env environment, every time.Duration, asJSON bool, show func(io.Writer) error) error {
	for {
		var b strings.Builder
		err := show(&b)
		if every > 0 && ctx.Err() != nil {
			return nil // it was watched for long enough
		}
		if err != nil {
			return err
		}
		switch {
		case every == 0 || asJSON:
		case isTerminal(env.stdout):
			fmt.Fprint(env.stdout, "\x1b[H\x1b[2J")
		default:
			fmt.Fprintln(env.stdout, stamp(time.Now()))
		}
		if _, err := io.WriteString(env.stdout, b.String()); err != nil || every == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
