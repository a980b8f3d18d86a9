package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/exclusive-go/exclusive/internal/story"
)

// textOutput writes for people, as the demo goes along.
type textOutput struct {
	w   io.Writer
	all bool
}

func (o textOutput) printf(format string, args ...any) { fmt.Fprintf(o.w, format, args...) }

func (o textOutput) intro() {
	o.printf("Two workers, A and B, write the same report. A lock with a time limit of %d ms\n"+
		"keeps them apart, until A freezes for longer than that.\n", lease.Milliseconds())
}

func (o textOutput) database(name string) { o.printf("\n=== %s ===\n", name) }

// timelines prints a story, if it is the main one or all are wanted.
func (o textOutput) timelines(s scene, isMain bool) {
	if !isMain && !o.all {
		return
	}
	o.printf("\nThe lock alone: %s\n\n%s", s.story.Title, s.unguarded.Timeline())
	o.printf("\nWith the check where the result is stored\n\n%s", s.guarded.Timeline())
}

// verdict prints the table and what it comes to.
func (o textOutput) verdict(results []result) {
	for _, r := range results {
		o.printf("\nWhat was stored in the end, on %s\n\n", r.database)
		table := tabwriter.NewWriter(o.w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "story\tthe lock alone\twith the check\tpromise\n")
		fmt.Fprint(table, "-----\t--------------\t--------------\t-------\n")
		for _, s := range r.scenes {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.story.Title, unguardedVerdict(s.unguarded), guardedVerdict(s.guarded), held(s))
		}
		_ = table.Flush() // the writer's errors are those of standard output
	}
	o.printf("\n%s\n", summary(results))
}

func unguardedVerdict(r *story.Report) string {
	if r.Damaged {
		return r.Stored + ": WRONG"
	}
	return r.Stored + ": nothing went wrong?"
}

func guardedVerdict(r *story.Report) string {
	if r.OK() {
		return r.Stored + ": right"
	}
	return r.Stored + ": WRONG"
}

func held(s scene) string {
	switch {
	case !s.guarded.OK():
		return "BROKEN"
	case !s.unguarded.OK():
		return "not shown"
	}
	return "held"
}

// summary says in a sentence what came out, or what is wrong.
func summary(results []result) string {
	var faults []string
	for _, r := range results {
		for _, s := range r.scenes {
			for _, report := range []*story.Report{s.unguarded, s.guarded} {
				if err := report.Failure(); err != nil {
					faults = append(faults, fmt.Sprintf("%s: %v", r.database, err))
				}
			}
		}
	}
	if faults != nil {
		return "NOT as it must be:\n  " + strings.Join(faults, "\n  ")
	}
	return "Every promise was held, and every story went wrong with the lock alone.\n" +
		"The difference is where the grant is checked: in the transaction that writes."
}
