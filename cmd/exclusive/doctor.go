package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/doctor"
	"github.com/exclusive-go/exclusive/internal/templates"
)

var doctorHelp = `Looks at a database and says what of it weakens the promises of the strategies,
why, and what mends it: a statement or a setting. Run it with the application's
DSN, since settings come from the DSN, the account, the database and the server.
It changes nothing; docs/doctor.md lists every check.

` + databaseHelp + `

The exit code is 0 if no check failed, 1 if one did, 2 for wrong flags, 3 if it
could not run to its end. A question that the server does not answer within 10 s has
failed. Warnings do not change it, and neither do the checks
that --ignore names.`

const doctorExample = `  exclusive doctor --dsn postgres://me@localhost/app
  exclusive doctor --dsn-file /run/secrets/dsn --strategy fencing --pool 10 --processes 6
  EXCLUSIVE_DSN=redis://localhost:6379/0 exclusive doctor --json
  exclusive doctor --dsn-file /run/secrets/dsn --ignore replication,isolation`

func doctorCommand(env environment) *cobra.Command {
	var d struct {
		database
		asJSON  bool
		ignore  []string
		options doctor.Options
	}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Say what of a database weakens the promises, and what mends it",
		Long: doctorHelp, Example: doctorExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			for _, id := range d.ignore {
				if !slices.Contains(doctor.IDs(), id) {
					return usageError("--ignore: there is no such check; they are %s", strings.Join(doctor.IDs(), ", "))
				}
			}
			if err := templates.ValidStrategies(d.options.Strategies); err != nil {
				return usageError("--strategy: %w", err)
			}
			if d.options.Pool < 0 || d.options.Processes < 0 {
				return usageError("--pool and --processes must not be negative")
			}
			t, err := d.target(env)
			if err != nil {
				return err
			}
			d.options.Prefix, d.options.Schema, d.options.AnswerWait = d.prefix, d.schema, env.answerWait
			facts, err := doctor.Gather(cmd.Context(), t, d.options)
			if err != nil {
				return err
			}
			findings := doctor.Examine(facts, d.ignore)
			e := examined{doctor.Good(findings), facts.Kind, findings}
			if err := write(env.stdout, d.asJSON, e, writeExamined); err != nil {
				return err
			}
			if !e.OK {
				return &exitError{code: exitNo}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	d.databaseFlags(flags)
	flags.StringSliceVar(&d.options.Strategies, "strategy", nil, "`strategies` whose tables must be there, with commas between them (default: each that has one)")
	flags.IntVar(&d.options.Pool, "pool", 0, "the most connections of each process, to be held against the server's limit (default: not known)")
	flags.IntVar(&d.options.Processes, "processes", 0, "how many processes there are, likewise (default: not known)")
	flags.StringSliceVar(&d.ignore, "ignore", nil, "`checks` whose findings are shown and do not count, with commas between them")
	flags.BoolVar(&d.asJSON, "json", false, "write the findings as JSON")
	completeValues(cmd, "strategy", templates.Strategies()...)
	completeValues(cmd, "ignore", doctor.IDs()...)
	return cmd
}

// examined is what doctor has found.
type examined struct {
	OK       bool             `json:"ok"`
	Database string           `json:"database"`
	Checks   []doctor.Finding `json:"checks"`
}

// writeExamined writes a line for each check, and the reasons and mends of those
// that are not ok below.
func writeExamined(w io.Writer, e examined) error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	counts := make(map[doctor.Status]int)
	for _, finding := range e.Checks {
		status := string(finding.Status)
		if finding.Ignored && finding.Status != doctor.OK {
			status += " (ignored)"
		} else {
			counts[finding.Status]++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", status, finding.Check, strings.ReplaceAll(finding.Found, "\n", " "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, finding := range e.Checks {
		if finding.Status == doctor.OK || finding.Ignored {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s. %s\n", finding.Status, finding.Check, finding.Title)
		fmt.Fprintf(&b, "  found  %s\n", finding.Found)
		fmt.Fprintf(&b, "  why    %s\n", strings.Join(wrap(finding.Why, 72), "\n         "))
		fmt.Fprintf(&b, "  mend   %s\n", strings.ReplaceAll(finding.Mend, "\n", "\n         "))
	}
	fmt.Fprintf(&b, "\n%d ok, %d to know about, %d failed\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks a text into lines of at most width characters, where it can.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
