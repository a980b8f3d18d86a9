package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/bench"
)

var benchHelp = `Measures what each strategy costs on your own database: round trips (counted on
the connection), how long one grant takes with nobody in the way, how many there
are per second, and how many connections are held while work runs. Beside each
is the same done by hand in plain SQL (Redis: SET NX and a script), in the same
run: the ratio of the two travels to other machines, the times do not.

One grant is a claim, the write of a row, and the finish, in one transaction as
far as the strategy has one. With --empty work writes nothing. It all goes through
database/sql; with a pool of pgx a transaction on PostgreSQL takes one round trip
less.

It works in tables of its own (exclusive_bench_…; Redis: keys under
exclusive:bench:…), which it makes and drops, also after Ctrl-C or a hang-up. A SIGKILL leaves
them. Do not run it on a server that others need to be fast.

` + databaseHelp + durationHelp + `

The exit code is 0 if all was measured, 2 for wrong flags, 3 if not.`

const benchExample = `  exclusive bench --dsn postgres://me@localhost/test
  exclusive bench --dsn-file /run/secrets/dsn --strategy fencing,rowlock --workers 32 --duration 10s
  EXCLUSIVE_DSN=redis://localhost:6379/0 exclusive bench --json`

func benchCommand(env environment) *cobra.Command {
	var d struct {
		database
		asJSON  bool
		options bench.Options
	}
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure what each strategy costs on your database",
		Long: benchHelp, Example: benchExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			t, err := d.target(env)
			if err != nil {
				return err
			}
			t.Create = true
			o := &d.options
			o.Prefix, o.Schema = d.prefix, d.schema
			known := bench.SQLStrategies
			if t.IsRedis() {
				known = bench.RedisStrategies
			}
			for _, name := range o.Strategies {
				if !slices.Contains(known, name) {
					return usageError("--strategy: there are %s on this database", strings.Join(known, ", "))
				}
			}
			if o.Duration < bench.MinDuration || o.Duration > bench.MaxDuration {
				return usageError("--duration must be from %v to %v", bench.MinDuration, bench.MaxDuration)
			}
			if o.Workers < 1 || o.Workers > bench.MaxWorkers {
				return usageError("--workers must be from 1 to %d", bench.MaxWorkers)
			}
			if isTerminal(env.stderr) {
				o.Progress = func(done float64, what string) { progressBar(env.stderr, done, what) }
			}
			report, err := bench.Run(cmd.Context(), t, *o)
			if o.Progress != nil {
				fmt.Fprint(env.stderr, "\r\x1b[K") // nothing stays of it
			}
			if err != nil {
				return err
			}
			return write(env.stdout, d.asJSON, report, writeBench)
		},
	}
	flags := cmd.Flags()
	d.databaseFlags(flags)
	flags.StringSliceVar(&d.options.Strategies, "strategy", nil, "`strategies` to be measured, with commas between them (default: all)")
	flags.DurationVar(&d.options.Duration, "duration", time.Second, "how long each measurement lasts; there are two for each strategy, and two by hand")
	flags.IntVar(&d.options.Workers, "workers", 8, "how many work at once in the measurement with several, each on its own key")
	flags.BoolVar(&d.options.Empty, "empty", false, "work writes nothing: the cost of claim and finish alone")
	flags.BoolVar(&d.asJSON, "json", false, "write the results as JSON; times are nanoseconds")
	completeValues(cmd, "strategy", slices.Concat(bench.SQLStrategies, bench.RedisStrategies)...)
	return cmd
}

// progressBar draws how much is done, over what it drew before.
func progressBar(w io.Writer, done float64, what string) {
	const width = 30
	full := int(done * width)
	fmt.Fprintf(w, "\r\x1b[K[%s%s] %3.0f%% %s", strings.Repeat("#", full), strings.Repeat(" ", width-full), 100*done, what)
}

func writeBench(w io.Writer, r *bench.Report) error {
	var b strings.Builder
	work := "one write per grant"
	if r.Empty {
		work = "nothing written"
	}
	fmt.Fprintf(&b, "%s, %v each, %s, nobody in the way\n\n", r.Database, r.Duration, work)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%-15s\tround trips\tmedian\t99%%\t1 worker\t%d workers\tconnections held\tby hand = 1\t\n", "strategy", r.Workers)
	for _, line := range r.Results {
		name := line.Strategy
		switch {
		case name == "":
			name = "the write alone"
		case line.ByHand:
			name = "  by hand"
		}
		trips, ratio := "none", ""
		if line.RoundTrips != nil {
			trips = fmt.Sprintf("%.1f", *line.RoundTrips)
		}
		if line.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", line.Ratio)
		}
		fmt.Fprintf(table, "%-15s\t%s\t%v\t%v\t%.0f/s\t%.0f/s\t%d\t%s\t\n", name, strings.TrimSuffix(trips, ".0"),
			line.P50.Round(time.Microsecond), line.P99.Round(time.Microsecond), line.PerSecond1, line.PerSecondN, line.Held, ratio)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
