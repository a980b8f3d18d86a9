package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

const initHelp = `Makes the tables of the strategies in a database that no application migrates,
for use with this command alone. It makes what is missing and touches nothing
else, so it can be run again, and by several at once. On PostgreSQL and SQLite it
makes all or nothing. MySQL and MariaDB commit each table by itself: if one fails,
those before it stay, and the next run goes on from there.

An application copies the migrations into its own instead: exclusive migrations copy.

` // sqlHelp follows

const initExit = `

The exit code is 0 if all is there, 1 if a table is there but not as it must be,
2 for wrong flags, 3 if it could not be done.`

const initExample = `  exclusive init --dsn sqlite:///var/lib/cron/locks.db
  exclusive init --dsn-file /run/secrets/dsn --strategy fencing,uniquetask
  EXCLUSIVE_DSN=mysql://ops:secret@db/locks exclusive init --prefix cron_ --json`

func initCommand(env environment) *cobra.Command {
	var p picked
	d := database{create: true}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "init", Short: "Make the tables in a database that no application migrates",
		Long: initHelp + sqlHelp + initExit, Example: initExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			// What is wrong with the flags is told before anything is opened.
			if _, err := p.selection(templates.Dialects()[0], d.names()); err != nil {
				return err
			}
			done := schema.Done{Created: []string{}, Present: []string{}}
			err := d.with(cmd.Context(), env, func(o *target.Open) error {
				s, err := p.selection(o.Dialect, d.names())
				if err != nil {
					return err
				}
				now, err := schema.Init(cmd.Context(), o.SQL, s)
				done.Created, done.Present = append(done.Created, now.Created...), append(done.Present, now.Present...)
				return err
			})
			if different := new(schema.DifferentError); errors.As(err, &different) {
				return &exitError{exitNo, err}
			}
			if err != nil && len(done.Created) == 0 {
				return err
			}
			return errors.Join(err, write(env.stdout, asJSON, done, writeDone))
		},
	}
	p.strategyFlag(cmd, "all")
	d.databaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what was done as JSON")
	return cmd
}

func writeDone(w io.Writer, done schema.Done) error {
	var b strings.Builder
	for _, object := range done.Present {
		fmt.Fprintf(&b, "there already  %s\n", object)
	}
	for _, object := range done.Created {
		fmt.Fprintf(&b, "made           %s\n", object)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
