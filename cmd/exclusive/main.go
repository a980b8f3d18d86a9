// Command exclusive shows and operates what package exclusive does. Start with
// the demo, which needs nothing installed:
//
//	go run github.com/exclusive-go/exclusive/cmd/exclusive demo
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/supervise"
)

// The exit codes that all commands share.
const (
	exitOK     = 0
	exitNo     = 1 // it ran, and the answer is no
	exitUsage  = 2
	exitFailed = 3 // it could not run
)

// environment is what a command knows of the world outside.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	answerWait time.Duration // for a database; 0: as long as a command thinks fit
}

// commands make the commands, in the order in which help lists them.
var commands = []func(environment) *cobra.Command{
	demoCommand,
	chooseCommand,
	initCommand,
	migrationsCommand,
	doctorCommand,
	runCommand,
	psCommand,
	tasksCommand,
	releaseCommand,
	forgetCommand,
	pruneCommand,
	versionCommand,
	benchCommand,
}

func main() {
	supervise.Keep() // if this is the process that keeps watch over a command
	// A signal that whoever started this has ignored, as scripts do for what they
	// start in the background, stays ignored.
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, signal.Ignored)
	ctx, stop := context.Background(), func() {}
	if len(signals) > 0 { // none would stand for all
		ctx, stop = signal.NotifyContext(ctx, signals...)
	}
	// The first signal has the command tidy up; a second one ends it at once.
	context.AfterFunc(ctx, stop)
	os.Exit(dispatch(ctx, environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}, os.Args[1:]))
}

// exitError ends a command with a code. Without an error nothing more is to be
// said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

// usageError is about what the user typed.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

const rootHelp = `Keeps things from happening twice, on the database that you already run:
PostgreSQL, MySQL, MariaDB, SQLite or Redis.

To see what it is about, play the demo: it needs nothing. To use it in a program,
choose a strategy and copy its migration; to use it for a job in any language, make
the tables with init and put run in front of the job's command. doctor says what
of a database weakens the promises, and bench what they cost on it.

All commands share these exit codes (run has those of its command, and others):
0 done, 1 the answer is no, 2 wrong flags or arguments, 3 it could not run.`

const rootExample = `  exclusive demo
  exclusive choose
  exclusive doctor --dsn postgres://me@localhost/app
  exclusive init --dsn sqlite:///var/lib/cron/locks.db
  exclusive run --dsn sqlite:///var/lib/cron/locks.db --name backup -- /usr/local/bin/backup`

func init() {
	cobra.EnableCommandSorting = false // commands are in an order that says something
}

// rootCommand is the command with all its subcommands.
func rootCommand(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:           "exclusive",
		Short:         "Keep things from happening twice, on the database that you already run",
		Long:          rootHelp,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	groupOnly(root, env)
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(flagError)
	for _, command := range commands {
		root.AddCommand(command(env))
	}
	completeRest(root)
	return root
}

// groupOnly makes cmd one that does nothing but have other commands below it:
// without arguments it is as lost as with wrong ones.
func groupOnly(cmd *cobra.Command, env environment) {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError("there is no such command; see %s --help", cmd.CommandPath())
		}
		cmd.SetOut(env.stderr)
		return errors.Join(cmd.Usage(), &exitError{code: exitUsage})
	}
}

// dispatch runs the command that args name and returns the exit code. An error
// without a code of its own means that the command could not run.
func dispatch(ctx context.Context, env environment, args []string) int {
	out := &written{Writer: env.stdout}
	env.stdout = out
	root := rootCommand(env)
	root.SetArgs(args)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.err
	}
	return env.exitCode(ran.CommandPath(), err)
}

// exitCode prints what a command ended with and returns the code for it.
func (env environment) exitCode(command string, err error) int {
	if err == nil {
		return exitOK
	}
	exit := &exitError{code: exitFailed, err: err}
	errors.As(err, &exit)
	if exit.err != nil {
		fmt.Fprintf(env.stderr, "%s: %v\n", command, exit.err)
	}
	return exit.code
}

// flagError says what is wrong with a flag without the value that was given: it
// may be a DSN with a password.
func flagError(_ *cobra.Command, err error) error {
	var (
		unknown  *pflag.NotExistError
		required *pflag.ValueRequiredError
		invalid  *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		return usageError("there is no flag %s; see --help", name)
	case errors.As(err, &required):
		return usageError("--%s lacks its value", required.GetFlag().Name)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		if flag.Value.Type() == "duration" {
			return usageError("the value of --%s is no duration; write it as 90s, 10m or 1h30m", flag.Name)
		}
		return usageError("the value of --%s is no %s", flag.Name, flag.Value.Type())
	}
	return usageError("a flag is malformed; see --help")
}

// noArguments refuses arguments without quoting them.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%d argument(s) too many; a value follows its flag", len(args))
	}
	return nil
}
