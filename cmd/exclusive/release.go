package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/uniquetask"
)

const releaseHelp = `Takes a key, or with --run a run of a task, from its holder, so that somebody
else can have it at once, with a higher token. NAME is that of the key or the task,
as ps shows it.

The holder's guarded writes are refused from now on: by a lease's own database at
once, by a Guard on another database from the next holder's first write there.
It learns of it when it renews, which is within a third of its TTL, and a command
under exclusive run is stopped then. Until then it may still work, beside its
successor. If it must not, stop it first.

It is taken from the holder that this command finds, and with --token only from
the one that ps or tasks has shown with that token. If the key passes on meanwhile
the newcomer keeps it, and is named.

`

const releaseExample = `  exclusive release backup
  exclusive release backup --token 4711
  exclusive release report --run 2026-11-29`

// released is what release has done.
type released struct {
	Name string     `json:"name"`
	Run  string     `json:"run,omitempty"`
	From *grantJSON `json:"from"`          // null: nobody had it, or it was left alone
	Now  *grantJSON `json:"now,omitempty"` // who has it, and keeps it
	// Runs are held, of the task that has the name of the key that nobody has.
	Runs []string `json:"runs,omitempty"`

	passed bool // it has passed on, or was given back, since it was looked at
}

func releaseCommand(env environment) *cobra.Command {
	var d database
	var run string
	var token int64
	var asJSON bool
	cmd := &cobra.Command{
		Use: "release NAME", Short: "Take a key from its holder", Long: releaseHelp + databaseHelp + takeExit,
		Example: releaseExample, Args: exactly("the name of the key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			done := released{Name: args[0], Run: run}
			if err := flagSet(cmd, "run", "dsn", "dsn-file"); err != nil {
				return err
			}
			if cmd.Flags().Changed("token") && token <= 0 {
				return usageError("--token must be greater than 0")
			}
			ctx := cmd.Context()
			return d.operate(ctx, env, func(k *keys) error {
				look, end, err := k.looker(args[0], run)
				if err != nil {
					return err
				}
				if err := errors.Join(done.take(ctx, token, look), end()); err != nil {
					return said(err, k.line, args[0], run)
				}
				if run == "" && done.From == nil && done.Now == nil {
					done.Runs = k.heldRuns(ctx, args[0])
				}
				return report(env, asJSON, done, done.From != nil, func(w io.Writer, done released) error {
					_, err := fmt.Fprintf(w, "released: %s\n", done.From.had("had"))
					return err
				}, done.why(token))
			})
		},
	}
	d.databaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&run, "run", "", "the name is that of a task, and this one of its runs")
	cmd.Flags().Int64Var(&token, "token", 0, "only from the holder with this token (default: whoever has it)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what was done as JSON")
	return cmd
}

// had says who has or had a key.
func (g *grantJSON) had(verb string) string {
	return fmt.Sprintf("%s %s it with token %d since %s", printable(g.Holder), verb, g.Token, stamp(g.Since))
}

// why says why nothing was released.
func (r *released) why(token int64) string {
	switch {
	case r.Now != nil && r.passed:
		return "it has passed on meanwhile: " + r.Now.had("has") + ", and keeps it"
	case r.Now != nil:
		return fmt.Sprintf("%s, and not with %d: it was left alone", r.Now.had("has"), token)
	case r.passed:
		return "it was given back meanwhile, or has run out; nobody holds it"
	case len(r.Runs) > 0:
		return "nobody holds it, but runs of the task of that name are held; name one with --run: " + printable(strings.Join(r.Runs, ", "))
	}
	return "nobody holds it; exclusive ps shows what is held"
}

// seen is a key that somebody has.
type seen struct {
	grantJSON
	release func(context.Context) error // from that holder, and from nobody else
}

// looker makes what looks who has a key or a run, nil if nobody does. end is to be
// called in the end.
func (k *keys) looker(name, run string) (look func(context.Context) (*seen, error), end func() error, err error) {
	if run == "" {
		return func(ctx context.Context) (*seen, error) { return k.seeKey(ctx, name) }, func() error { return nil }, nil
	}
	t, err := k.tasks(name)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (*seen, error) {
		r, err := t.Outcome(ctx, run)
		if err == nil && !r.Live {
			err = free(t.ReleaseSeen(ctx, uniquetask.Run{Run: run, GrantID: nobody}))
		}
		if err != nil || !r.Live {
			return nil, err
		}
		return &seen{runGrant(name, r), func(ctx context.Context) error { return t.ReleaseSeen(ctx, r) }}, nil
	}, t.Close, nil
}

// heldRuns lists those of a task. It is for a hint: a role may have no rights on
// them, or there is no table.
func (k *keys) heldRuns(ctx context.Context, task string) (runs []string) {
	if k.redis == nil {
		_ = k.eachRun(ctx, []string{task}, uniquetask.Running, func(_ string, r uniquetask.Run) error {
			if r.Live {
				runs = append(runs, r.Run)
			}
			return nil
		})
	}
	return runs
}

// nobody is no grant's id. To look is a plain read, which a replica may answer that
// has not heard of the holder yet. To release from nobody asks the primary, which
// tells of a holder that it has; a server that only reads refuses it.
const nobody = "nobody"

// free says that a key is free, by what a release from nobody said.
func free(err error) error {
	if errors.Is(err, exclusive.ErrLost) {
		return nil
	}
	return err
}

func (k *keys) seeKey(ctx context.Context, key string) (*seen, error) {
	var x interface {
		Status(ctx context.Context, key string) (exclusive.Status, error)
		ReleaseSeen(ctx context.Context, s exclusive.Status) error
	} = k.redis
	strategy := "redisbackend"
	if k.redis == nil {
		x, strategy = k.leases, "fencing"
	}
	s, err := x.Status(ctx, key)
	if err == nil && !s.Held {
		err = free(x.ReleaseSeen(ctx, exclusive.Status{Key: key, Last: exclusive.Holder{ID: nobody}}))
	}
	if err != nil || !s.Held {
		return nil, err
	}
	return &seen{leaseOf(strategy, s), func(ctx context.Context) error { return x.ReleaseSeen(ctx, s) }}, nil
}

// take releases what look shows, if it has the token; 0 stands for any.
func (r *released) take(ctx context.Context, token int64, look func(context.Context) (*seen, error)) error {
	s, err := look(ctx)
	if err != nil || s == nil {
		return err
	}
	if token == 0 || token == s.Token {
		err := s.release(ctx)
		switch {
		case err == nil:
			r.From = &s.grantJSON
			return nil
		case !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrLost):
			return err
		}
		r.passed = true
		if s, err = look(ctx); err != nil || s == nil {
			return err
		}
	}
	r.Now = &s.grantJSON
	return nil
}
