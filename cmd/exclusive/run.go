package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // --daily knows all zones on every machine

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/supervise"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// The exit codes of run beside those that all commands share and those of the
// command that it runs. Busy and unavailable are those of sysexits.h, lost is
// that of timeout(1), and those of a command that cannot be run are env(1)'s.
const (
	exitUnavailable = 69
	exitNoMore      = 70
	exitUnrecorded  = 74
	exitBusy        = 75
	exitLost        = 124
)

const runHelp = `Runs COMMAND with its arguments while holding a key, so that it does not run twice
at once: neither on this machine nor on another one that uses the same database. If
the key is taken the command does not run, and the exit code is 75. What follows
COMMAND is its own: no flag of exclusive is looked for there.

With --once, --daily or --hourly the key is one run of the name, which is
remembered: one that is done is not done again, whoever asks. If the database is
away when the command has succeeded, that is tried to be recorded for as long as
the lease lasts. A command that fails
(its exit code is not 0) may be run again; --max-attempts and --backoff limit that.
Who waits (--wait) when it fails runs it at once, or with --backoff ends with 70.
Another run of the same name is another key: yesterday's may still be at work.

--daily and --hourly take this machine's present: machines whose clocks differ, or
a start or retry that comes late, can be in another day or hour than the schedule
meant, and so do the work twice or leave it out. If one place schedules for many
machines, or what failed is started again later, have it say for which time it did:
--scheduled.

The key is a lease of --ttl, which is renewed while the command runs. If that
fails for so long that the lease might pass on, the command and all that it has
started are stopped before: SIGTERM, and SIGKILL after --kill-after, which may
be 0: then SIGKILL at once. What the command leaves running when it ends has a
second, or --kill-after if that is less, to end by itself, and is then stopped in
the same way. If this process is killed, so is the command. Signals are handed on
to the command's process group, and standard input, output and error are the
command's own. It may read from the terminal, unless its output goes into a pipe: then that is
for the other programs there.

A script without #! that the kernel cannot run is run by /bin/sh, as cron does.
What has no interpreter, or may not be executed, is told before anything is taken; what
only the kernel knows, when it is to start. It is no attempt of the run either.

Without --quiet a line on standard error says why a command did not run.

The command finds in its environment
  EXCLUSIVE_NAME     what --name says
  EXCLUSIVE_RUN      the run, with --once, --daily or --hourly
  EXCLUSIVE_KEY      the name, or name/run: an idempotency key (a % or / in them
                     is written as %25 or %2F)
  EXCLUSIVE_TOKEN    a number that rises with every grant of the key
  EXCLUSIVE_GRANT    the grant's id
  EXCLUSIVE_ATTEMPT  1, or more if earlier ones failed or vanished
  EXCLUSIVE_EXPIRES  when the lease ends unless it is renewed, which it is
EXCLUSIVE_DSN is taken out of it, unless --keep-dsn is given.

Exit codes: that of the command, or 128 and the number of the signal that ended
it (137 also if what keeps watch over it was killed: the command may have run); or
    2  wrong flags
    3  this is no Linux, where alone run is supported
   69  the database is unavailable, or lacks the tables; the command did not run
   70  the run failed before, and may not begin again (--max-attempts, --backoff)
   74  the command succeeded, but that could not be recorded: it may run again
   75  somebody else holds the key (--busy-code)
  124  the lease was lost, and the command was stopped or had ended meanwhile
  126  the command cannot be executed
  127  there is no such command
A run that is done already is success: 0 (--done-code).`

const runExample = `  exclusive run --name backup -- /usr/local/bin/backup --full
  exclusive run --name report --daily Europe/Berlin --max-attempts 3 -- make report
  exclusive run --name import --once "$FILE" --wait 10m -- import "$FILE"`

// The lengths of a lease, and of the time to stop in, that flags do not set; and for
// how long it is tried after a signal to record that the run is done.
const (
	runTTL       = time.Minute
	runKillAfter = 10 * time.Second
	recordWait   = 5 * time.Second
)

// runner is one run of the command.
type runner struct {
	database
	name, holder         string
	once, daily          string
	hourly               bool
	scheduled            string
	ttl, killAfter, wait time.Duration
	killSet              bool // killAfter is the user's, who may have said 0
	quiet, keepDSN       bool
	maxAttempts          int
	backoff, maxBackoff  time.Duration
	busyCode, doneCode   int
	argv                 []string

	run string // the run's key; empty: none is remembered

	mu      sync.Mutex
	signal  syscall.Signal // the first that came; 0: none
	started bool
	ended   bool // the command has, with success
	giveUp  context.CancelFunc

	ran    bool // the command was started
	result supervise.Result
}

func runCommand(env environment) *cobra.Command {
	var r runner
	cmd := &cobra.Command{
		Use: "run --name NAME [flags] [--] COMMAND [ARGUMENT…]", Short: "Run a command, and not twice",
		Long: runHelp + "\n\n" + databaseHelp + durationHelp, Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.argv, r.killSet = args, cmd.Flags().Changed("kill-after")
			if err := flagSet(cmd, "name", "once", "daily", "scheduled", "dsn", "dsn-file"); err != nil {
				return err
			}
			return r.do(cmd.Context(), env)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is its own
	r.databaseFlags(flags)
	flags.StringVar(&r.name, "name", "", "what must not run twice (needed)")
	flags.StringVar(&r.once, "once", "", "remember this run of the name, and do it once")
	flags.StringVar(&r.daily, "daily", "", "do it once each day of a time zone, such as Europe/Berlin or UTC; of which day is told by this machine's clock, or --scheduled")
	flags.BoolVar(&r.hourly, "hourly", false, "do it once each hour; of which hour is told by this machine's clock, or --scheduled")
	flags.StringVar(&r.scheduled, "scheduled", "", "the time for which the run was scheduled, such as 2026-11-29T02:30:00Z, in place of this machine's present")
	flags.DurationVar(&r.ttl, "ttl", runTTL, "how long the key stays taken after this machine has vanished")
	flags.DurationVar(&r.killAfter, "kill-after", 0, "how long after SIGTERM comes SIGKILL; 0: at once, without SIGTERM (default 10s, or a third of --ttl if that is less)")
	flags.DurationVar(&r.wait, "wait", 0, "how long to wait for a key that is taken, but not for a failed run to rest (default: not at all)")
	flags.IntVar(&r.maxAttempts, "max-attempts", 0, "how often a run may begin (default: no limit)")
	flags.DurationVar(&r.backoff, "backoff", 0, "how long a failed run rests, during which who comes or waits ends with 70; it doubles with each attempt (default: not at all)")
	flags.DurationVar(&r.maxBackoff, "max-backoff", 0, "limit of the doubling (default 1h)")
	flags.StringVar(&r.holder, "holder", "", "name of this holder for operators (default: host name and process id)")
	flags.IntVar(&r.busyCode, "busy-code", exitBusy, "exit code if somebody else holds the key")
	flags.IntVar(&r.doneCode, "done-code", exitOK, "exit code if the run is done already (default 0)")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing if the key is taken or the run is done")
	flags.BoolVar(&r.keepDSN, "keep-dsn", false, "leave EXCLUSIVE_DSN in the command's environment")
	return cmd
}

// complete checks the flags, before anything happens.
func (r *runner) complete(now time.Time) error {
	if r.name == "" {
		return usageError("--name is missing")
	}
	if len(r.argv) == 0 {
		return usageError("the command to run is missing")
	}
	if looksLikeDSN(r.argv[0]) {
		return usageError("where the command to run should be there is a DSN; that comes after --dsn, or is in %s", envDSN)
	}
	var periods []string
	for _, p := range []struct {
		flag string
		used bool
	}{{"--once", r.once != ""}, {"--daily", r.daily != ""}, {"--hourly", r.hourly}} {
		if p.used {
			periods = append(periods, p.flag)
		}
	}
	if len(periods) > 1 {
		return usageError("%s exclude each other", strings.Join(periods, " and "))
	}
	if err := r.findRun(now); err != nil {
		return err
	}
	if r.run == "" && (r.maxAttempts != 0 || r.backoff != 0 || r.maxBackoff != 0) {
		return usageError("--max-attempts and --backoff are for runs that are remembered: --once, --daily or --hourly")
	}
	for flag, code := range map[string]int{"--busy-code": r.busyCode, "--done-code": r.doneCode} {
		if code < 0 || code > 255 {
			return usageError("%s is %d; exit codes are from 0 to 255", flag, code)
		}
	}
	if r.ttl <= 0 {
		return usageError("--ttl must be longer than 0")
	}
	if !r.killSet {
		r.killAfter = min(runKillAfter, r.ttl/3)
	}
	// A lease is renewed after a third of it. Another sixth for renewals that
	// are late, and the rest is to stop in.
	if most := r.ttl/2 - r.reserve(); r.killAfter < 0 || r.killAfter > most {
		return usageError("--kill-after is %v; with a --ttl of %v it must be from 0 to %v, so that the command is stopped before somebody else can have the key", r.killAfter, r.ttl, max(most, 0).Round(time.Millisecond))
	}
	return nil
}

// reserve is how long before the lease's end all is over. It is when work's
// context ends.
func (r *runner) reserve() time.Duration { return min(max(r.ttl/10, 2*time.Millisecond), time.Second) }

// findRun finds the key of the run.
func (r *runner) findRun(now time.Time) error {
	at := now
	if r.scheduled != "" {
		if r.daily == "" && !r.hourly {
			return usageError("--scheduled is for --daily and --hourly")
		}
		var err error
		if at, err = time.Parse(time.RFC3339, r.scheduled); err != nil {
			return usageError("--scheduled is %q, which is no time such as 2026-11-29T02:30:00Z", r.scheduled)
		}
	}
	switch {
	case r.daily != "":
		zone, err := time.LoadLocation(r.daily)
		if err != nil || r.daily == "Local" { // two machines need not agree on what is local
			return usageError("--daily is %q, which is no time zone; write it as Europe/Berlin or UTC", r.daily)
		}
		r.run = uniquetask.RunDay(at, zone)
	case r.hourly:
		r.run = uniquetask.RunHour(at, time.UTC)
	default:
		r.run = r.once
	}
	return nil
}

func (r *runner) do(ctx context.Context, env environment) error {
	// Nobody may read standard error any more. Otherwise SIGPIPE would end this process
	// there, with the exit code of a command that it has ended. The command has the
	// signal as always.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := r.complete(time.Now()); err != nil {
		return err
	}
	if supervise.Supported != nil {
		return supervise.Supported
	}
	t, err := r.target(env)
	if err != nil {
		return err
	}
	if t.IsRedis() && r.run != "" {
		return usageError("--once, --daily and --hourly need a database of SQL: Redis does not keep what must be remembered")
	}
	// Before anything is taken: a command that does not exist is no attempt.
	path, err := supervise.Find(r.argv[0])
	if err != nil {
		return &exitError{supervise.Code(err), err}
	}

	// Signals end the wait, and later are the command's. So ctx must not end
	// with them.
	signals := make(chan os.Signal, 8)
	if list := supervise.Signals(); list != nil {
		signal.Notify(signals, list...)
		defer signal.Stop(signals)
	}
	if ctx.Err() != nil { // one has come before
		return &exitError{code: 128 + int(syscall.SIGINT)}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r.giveUp = cancel
	patience := time.AfterFunc(min(r.wait, math.MaxInt64-target.AnswerWait)+target.AnswerWait, func() { r.interrupt(0) })
	defer patience.Stop()
	ended := make(chan struct{})
	defer close(ended)
	process := make(chan *supervise.Process, 1)
	go r.handOn(signals, process, ended)

	o, err := t.Open(ctx, 4)
	if err != nil {
		return r.exit(t, err)
	}
	defer func() { _ = o.Close() }()
	x, key, stop, err := r.exclusive(o)
	if err != nil {
		return &exitError{exitUsage, t.Hide(err)}
	}
	defer stop()
	err = x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		return r.work(ctx, g, path, process)
	})
	return r.exit(t, err)
}

// exclusive makes what holds the key.
func (r *runner) exclusive(o *target.Open) (x exclusive.Exclusive, key string, stop func(), err error) {
	switch {
	case r.run != "":
		t, err := uniquetask.New(o.Adapter, uniquetask.Config{
			Task: r.name, Schema: r.schema, Prefix: r.prefix, TTL: r.ttl, Wait: r.wait, Holder: r.holder,
			MaxAttempts: r.maxAttempts, Backoff: r.backoff, MaxBackoff: r.maxBackoff,
		})
		if err != nil {
			return nil, "", nil, err
		}
		return t, r.run, func() { _ = t.Close() }, exclusive.ValidateKey("run", r.run)
	case o.Redis != nil:
		l, err := redisbackend.New(o.Redis, redisbackend.Config{Prefix: r.prefix, TTL: r.ttl, Wait: r.wait, Holder: r.holder})
		if err != nil {
			return nil, "", nil, err
		}
		return l, r.name, func() { _ = l.Close() }, exclusive.ValidateKey("run", r.name)
	}
	l, err := fencing.New(o.Adapter, fencing.Config{Schema: r.schema, Prefix: r.prefix, TTL: r.ttl, Wait: r.wait, Holder: r.holder})
	if err != nil {
		return nil, "", nil, err
	}
	return l, r.name, func() { _ = l.Close() }, exclusive.ValidateKey("run", r.name)
}

// interrupt ends the wait for the key, or hastens the end, unless the command runs.
// The signal is 0 if the database does not answer.
func (r *runner) interrupt(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		r.giveUp()
	} else if s != syscall.SIGHUP && s != syscall.SIGINT && s != syscall.SIGQUIT && s != syscall.SIGTERM {
		return // it says something else to the command
	}
	if r.signal == 0 {
		r.signal = s
		r.hasten()
	}
}

// endWell says that the command has succeeded, which is to be recorded.
func (r *runner) endWell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.hasten()
}

// hasten limits for how long that is tried after a signal. Do is not told at once:
// it would take the run for interrupted. The caller holds mu.
func (r *runner) hasten() {
	if r.ended && r.signal != 0 {
		time.AfterFunc(recordWait, r.giveUp)
	}
}

// interrupted returns the first signal that was to end it, or 0.
func (r *runner) interrupted() syscall.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.signal
}

// begin reports whether the command may start: no signal has come before.
func (r *runner) begin(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = ctx.Err() == nil
	return r.started
}

// handOn hands signals on to the command.
func (r *runner) handOn(signals <-chan os.Signal, process <-chan *supervise.Process, ended <-chan struct{}) {
	var p *supervise.Process
	var early []syscall.Signal // came while it was being started
	for {
		select {
		case <-ended:
			return
		case p = <-process:
			for _, s := range early {
				p.Signal(s)
			}
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			r.interrupt(number)
			if p != nil {
				p.Signal(number)
			} else {
				early = append(early, number)
			}
		}
	}
}

// childError is how the command ended, if not well.
type childError struct {
	result      supervise.Result
	interrupted bool
	err         error
}

// Unwrap makes a command that was interrupted a run that was.
func (e *childError) Unwrap() error {
	if e.interrupted {
		return context.Canceled
	}
	return e.err
}

func (e *childError) Error() string {
	switch {
	case e.err != nil:
		return e.err.Error()
	case e.result.Stopped != "":
		return "the command was stopped " + e.result.Stopped
	case e.result.Code > 128:
		return fmt.Sprintf("the command was ended by signal %d", e.result.Code-128)
	}
	return fmt.Sprintf("the command failed with exit code %d", e.result.Code)
}

// notBegun is why the command was not started: that was no attempt.
type notBegun struct{ error }

func (e *notBegun) Unwrap() []error { return []error{e.error, run.ErrNotBegun} }

// work runs the command under a grant.
func (r *runner) work(ctx context.Context, g exclusive.Grant, path string, process chan<- *supervise.Process) error {
	if !r.begin(ctx) {
		return &notBegun{context.Cause(ctx)}
	}
	expires := func() time.Time {
		now, _ := exclusive.CurrentGrant(ctx)
		return now.Expires
	}
	p, err := supervise.Start(supervise.Command{
		Path: path, Args: r.argv, Env: r.environ(os.Environ(), g),
		KillAfter: r.killAfter, Reserve: r.reserve(),
	}, expires(), os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		return &notBegun{err}
	}
	r.ran = true
	process <- p

	// The keeper does not see the renewals.
	tick := time.NewTicker(min(max(r.ttl/20, time.Millisecond), 250*time.Millisecond))
	defer tick.Stop()
	lost, told := ctx.Done(), expires()
	var overdue <-chan time.Time
	for {
		select {
		case <-tick.C:
			// Once for each renewal: see Extend. And a keeper that is stopped
			// reads nothing: its pipe must not fill up.
			if now := expires(); lost != nil && !now.Equal(told) {
				told = now
				p.Extend(now)
			}
			continue
		case <-lost:
			lost = nil
			p.Stop()
			// The keeper itself may be stopped.
			overdue = time.After(min(r.killAfter+r.reserve()/2, time.Until(expires().Add(-r.reserve()/2))))
			continue
		case <-overdue:
			p.Kill()
			continue
		case <-p.Done():
		}
		break
	}
	r.result, err = p.Wait()
	if err != nil || r.result.Code != 0 || r.result.Stopped != "" {
		interrupted := r.interrupted() != 0
		if interrupted {
			r.giveUp() // then the run needs no rest
		}
		return &childError{r.result, interrupted, err}
	}
	r.endWell()
	return nil
}

// environ is the command's environment.
func (r *runner) environ(ours []string, g exclusive.Grant) []string {
	set := map[string]string{
		"EXCLUSIVE_NAME": r.name, "EXCLUSIVE_RUN": r.run, "EXCLUSIVE_KEY": jobKey(r.name, r.run),
		"EXCLUSIVE_TOKEN": strconv.FormatInt(g.Token, 10), "EXCLUSIVE_GRANT": g.ID,
		"EXCLUSIVE_ATTEMPT": strconv.Itoa(g.Attempt),
		"EXCLUSIVE_EXPIRES": g.Expires.UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	if !r.keepDSN {
		set[envDSN] = ""
	}
	var env []string
	for _, variable := range ours {
		name, _, _ := strings.Cut(variable, "=")
		if _, replaced := set[name]; !replaced {
			env = append(env, variable)
		}
	}
	for name, value := range set {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// exit makes an exit code of what Do or Open returned.
func (r *runner) exit(t *target.Target, err error) error {
	if err == nil {
		return nil
	}
	hidden := target.OneLine(t.Hide(said(err, t.Line, r.name, r.run)))
	var child *childError
	var start *supervise.StartError
	switch {
	case errors.As(err, &start):
		return &exitError{supervise.Code(start.Err), start}
	case r.started && !r.ran: // nor could the keeper
		return &exitError{supervise.CodeNotExecutable, hidden}
	case errors.Is(err, exclusive.ErrLost), errors.Is(err, exclusive.ErrFenced), r.ran && r.result.Stopped != "":
		return &exitError{exitLost, hidden}
	case errors.As(err, &child):
		// The command has said itself what is wrong. But the keeper may have been
		// killed, or the key may not have been given back.
		if err == error(child) && child.err == nil {
			hidden = nil
		}
		return &exitError{r.result.Code, hidden}
	case errors.Is(err, exclusive.ErrFinished):
		return &exitError{exitOK, hidden}
	case errors.Is(err, exclusive.ErrOutcomeUnknown):
		return &exitError{exitUnrecorded, hidden}
	case errors.Is(err, exclusive.ErrHeld):
		return r.tell(r.busyCode, hidden)
	case errors.Is(err, exclusive.ErrDone):
		return r.tell(r.doneCode, hidden)
	case errors.Is(err, uniquetask.ErrFailed):
		return &exitError{exitNoMore, hidden}
	case r.interrupted() != 0:
		return &exitError{code: 128 + int(r.interrupted())}
	case errors.Is(err, exclusive.ErrInvalid):
		return &exitError{exitUsage, hidden}
	case errors.Is(err, context.Canceled):
		return &exitError{exitUnavailable, fmt.Errorf("the database has not answered for %v: %w", target.AnswerWait, hidden)}
	}
	if errors.Is(err, exclusive.ErrUnavailable) {
		hidden = fmt.Errorf("%w; %s", hidden, t.AskDoctor())
	}
	return &exitError{exitUnavailable, hidden}
}

// tell is for what is no failure.
func (r *runner) tell(code int, err error) error {
	if r.quiet {
		err = nil
	}
	return &exitError{code, err}
}
