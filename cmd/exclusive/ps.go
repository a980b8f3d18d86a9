package main

import (
	"context"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/uniquetask"
)

const psHelp = `Shows who holds which key, since when, and until when if it is not renewed:
leases, and runs of tasks that are under way. Packages rowlock and casupdate
leave nothing to show: a row lock is in no table, and a claimed row is one of
the application's own.

`

const psExample = `  exclusive ps --dsn-file /etc/exclusive/dsn
  exclusive ps --name backup --watch
  exclusive ps --holder db7 --json`

// ps lists what is held.
type ps struct {
	database
	name, holder, strategy string
	watch                  time.Duration
	asJSON                 bool
}

func psCommand(env environment) *cobra.Command {
	var p ps
	cmd := &cobra.Command{
		Use: "ps", Short: "Show who holds which key", Long: psHelp + databaseHelp + durationHelp + showExit,
		Example: psExample, Args: cobra.MatchAll(watchApart, noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			if err := oneOf("--strategy", p.strategy, "", "fencing", "uniquetask", "redisbackend"); err != nil {
				return err
			}
			if p.watch < 0 {
				return usageError("--watch must not be negative")
			}
			ctx := cmd.Context()
			return p.operate(ctx, env, func(k *keys) error {
				return watch(ctx, env, p.watch, p.asJSON, func(w io.Writer) error {
					list, err := p.list(ctx, k)
					if err != nil {
						return err
					}
					return write(w, p.asJSON, list, writeGrants)
				})
			})
		},
	}
	p.databaseFlags(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&p.name, "name", "", "only keys and tasks whose name has this text in it")
	flags.StringVar(&p.holder, "holder", "", "only holders whose name has this text in it")
	flags.StringVar(&p.strategy, "strategy", "", "only fencing, uniquetask or redisbackend")
	watchFlag(flags, &p.watch)
	flags.BoolVar(&p.asJSON, "json", false, "write a JSON list")
	completeValues(cmd, "strategy", "fencing", "uniquetask", "redisbackend")
	return cmd
}

func (p *ps) wants(g grantJSON) bool {
	return (p.strategy == "" || p.strategy == g.Strategy) && strings.Contains(g.Name, p.name) && strings.Contains(g.Holder, p.holder)
}

func (p *ps) list(ctx context.Context, k *keys) ([]grantJSON, error) {
	list := []grantJSON{}
	add := func(g grantJSON) {
		if p.wants(g) {
			list = append(list, g)
		}
	}
	if k.redis != nil {
		held, err := k.redis.List(ctx)
		for _, s := range held {
			add(leaseOf("redisbackend", s))
		}
		return list, err
	}
	leases := func() error {
		return pages(func(after string) (string, int, error) {
			held, err := k.leases.List(ctx, fencing.Filter{Held: true, After: after, Limit: pageSize})
			for _, s := range held {
				add(leaseOf("fencing", s))
				after = s.Key
			}
			return after, len(held), err
		})
	}
	runs := func() error {
		return k.eachRun(ctx, nil, uniquetask.Running, func(task string, r uniquetask.Run) error {
			if r.Live {
				add(runGrant(task, r))
			}
			return nil
		})
	}
	var err error
	switch p.strategy { // a role may have no rights on what was not asked for
	case "fencing":
		err = leases()
	case "uniquetask":
		err = runs()
	default:
		err = either(leases, runs)
	}
	return list, err
}

func writeGrants(w io.Writer, list []grantJSON) error {
	rows := [][]string{{"STRATEGY", "NAME", "RUN", "HOLDER", "TOKEN", "ATTEMPT", "SINCE", "UNTIL"}}
	for _, g := range list {
		rows = append(rows, []string{g.Strategy, g.Name, g.Run, g.Holder, strconv.FormatInt(g.Token, 10), strconv.Itoa(g.Attempt), stamp(g.Since), stamp(g.Until)})
	}
	return writeTable(w, rows)
}
