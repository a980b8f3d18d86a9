package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/choose"
)

const chooseHelp = `Asks at most five questions and names the weakest strategy that keeps your
invariant: why each weaker one does not, a program to begin with, and the
migration that it needs. It also says when no lock is needed at all.

Each question has a flag. What flags do not answer is asked on a terminal;
without one the flags that are still missing are named. It needs no database.
A flag for a question that is not asked is an error. They go together like this:

%s
The exit code is 0 if something was found, 1 if no strategy keeps what the
answers ask for, 2 if an answer is missing or is none of the choices, 3 if it was
interrupted.`

const chooseExample = `  exclusive choose
  exclusive choose --invariant row
  exclusive choose --invariant work --dialect postgres --again no --row no --late refused
  exclusive choose --invariant work --dialect mysql --again yes --length transaction --json
  exclusive choose --invariant work --dialect redis --again yes --late refused --results postgres`

func chooseCommand(env environment) *cobra.Command {
	var answers choose.Answers
	var asJSON bool
	cmd := &cobra.Command{
		Use: "choose", Short: "Name the weakest strategy that keeps your invariant",
		Long: fmt.Sprintf(chooseHelp, together()), Example: chooseExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := answerAll(cmd.Context(), env, &answers); err != nil {
				return err
			}
			r, err := choose.Decide(answers)
			if err != nil {
				return err
			}
			if err := write(env.stdout, asJSON, r, writeChoice); err != nil {
				return err
			}
			if r.LockNeeded && r.Strategy == "" {
				return &exitError{code: exitNo}
			}
			return nil
		},
	}
	for _, q := range choose.Questions() {
		cmd.Flags().StringVar(answers.To(q), q.Flag, "", "`answer` to: "+q.Text+" ("+strings.Join(q.Values(), ", ")+")")
		completeValues(cmd, q.Flag, q.Values()...)
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the answer as JSON")
	return cmd
}

// answerAll asks, on a terminal, what the flags have not answered.
func answerAll(ctx context.Context, env environment, a *choose.Answers) error {
	lines := bufio.NewReader(env.stdin)
	for asked := 1; ; asked++ {
		q, open, err := choose.Next(*a)
		switch {
		case err != nil:
			return usageError("%w", err)
		case !open:
			return nil
		case !isTerminal(env.stdin) || !isTerminal(env.stderr):
			return usageError("%s", missing(*a))
		}
		if *a.To(q), err = ask(ctx, env.stderr, lines, asked, q); err != nil {
			return err
		}
	}
}

// missing names the flags that are not there, with their choices.
func missing(a choose.Answers) string {
	sure, perhaps := choose.Missing(a)
	var flags, later []string
	var choices strings.Builder
	for _, q := range sure {
		flags = append(flags, "--"+q.Flag)
		fmt.Fprintf(&choices, "\n--%s is one of %s\n%s", q.Flag, strings.Join(q.Values(), ", "), options(q))
	}
	for _, q := range perhaps {
		later = append(later, "--"+q.Flag)
	}
	text := "this is no terminal to ask on; answer with " + strings.Join(flags, ", ")
	if later != nil {
		text += " and, as the answers require (exclusive choose --help), " + strings.Join(later, ", ")
	}
	return text + choices.String()
}

// together says which flags go together.
func together() string {
	var b strings.Builder
	for _, q := range choose.Questions() {
		with := "always"
		if text := q.GoesWith(); text != "" {
			with = "with " + text
		}
		fmt.Fprintf(&b, "  --%-10s %s\n", q.Flag, with)
	}
	return b.String()
}

// options are the choices with their texts, one a line.
func options(q choose.Question) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n", q.Text)
	for i, o := range q.Options {
		fmt.Fprintf(&b, "  %3d  %-12s %s\n", i+1, o.Value, o.Text)
	}
	return b.String()
}

// ask puts a question until it is answered, by number or by name.
func ask(ctx context.Context, w io.Writer, lines *bufio.Reader, n int, q choose.Question) (string, error) {
	fmt.Fprintf(w, "Question %d of at most %d:\n%s", n, choose.Most, options(q))
	for {
		fmt.Fprint(w, "> ")
		line, err := readLine(ctx, lines)
		if err != nil {
			return "", err
		}
		if i, err := strconv.Atoi(line); err == nil && i >= 1 && i <= len(q.Options) {
			return q.Options[i-1].Value, nil
		}
		if slices.Contains(q.Values(), line) {
			return line, nil
		}
		fmt.Fprintf(w, "A number from 1 to %d or the word beside it, please.\n", len(q.Options))
	}
}

// readLine reads a line unless ctx ends before. Then the reader is left to the
// end of the process: no read of a terminal can be broken off.
func readLine(ctx context.Context, lines *bufio.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		line, err := lines.ReadString('\n')
		done <- read{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", errors.New("interrupted")
	case r := <-done:
		if r.err != nil {
			return "", usageError("the questions were not answered")
		}
		return strings.TrimSpace(r.line), nil
	}
}

// writeChoice writes for people.
func writeChoice(w io.Writer, r *choose.Result) error {
	var b strings.Builder
	switch {
	case !r.LockNeeded:
		fmt.Fprintf(&b, "No lock is needed. This is enough: %s.\n", r.Instead)
	case r.Strategy == "":
		fmt.Fprintf(&b, "No strategy keeps all of that (%s):\n", strings.Join(r.Needs, ", "))
	default:
		fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(r.Strategy+" "+r.Variant))
		fmt.Fprintf(&b, "  how       %s\n", r.Mechanism)
		fmt.Fprintf(&b, "  promises  %s\n", strings.Join(r.Promises, ", "))
		fmt.Fprintf(&b, "  cost      %s\n", r.Cost)
		if len(r.Weaker) > 0 {
			b.WriteString("\nWhy nothing weaker:\n")
		}
	}
	for _, refusal := range r.Weaker {
		fmt.Fprintf(&b, "  %s: %s.\n", refusal.Strategy, refusal.Why)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if m := r.Migration; m != nil {
		b.WriteString("\nThe migration:\n\n")
		if m.Command != "" {
			fmt.Fprintf(&b, "  %s\n\n  It copies %s.\n", m.Command, strings.Join(m.Templates, ", "))
		}
		if m.SQL != "" {
			fmt.Fprintf(&b, "  -- your own table\n  %s\n", strings.ReplaceAll(strings.TrimSpace(m.SQL), "\n", "\n  "))
		}
	}
	if r.Snippet != "" {
		fmt.Fprintf(&b, "\nA program to begin with:\n\n%s", r.Snippet)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
