package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/story"
)

var demoHelp = `Two workers write the same report. One gets a lease, freezes for longer than
that lasts (garbage collection, a slow disk, a paused virtual machine) and wakes
up when the other one has done the work. The demo plays this and other stories
twice: with nothing but the lock, and with the check where results are stored.

Without flags it uses SQLite in a temporary directory. On a database that is
named it uses tables with a name of their own, and drops them in the end; if
several are named it is played on each. --dsn, and the first line of --dsn-file,
is one of

  ` + strings.ReplaceAll(target.SQLForms, "\n", "\n  ") + `

The variables EXCLUSIVE_DEMO_POSTGRES and EXCLUSIVE_DEMO_MYSQL stand for
--postgres and --mysql. They and --dsn-file keep passwords out of the list of
processes. EXCLUSIVE_DSN does not count here: who has set it for jobs does not
mean it as a place for a demo.

The exit code is 0 if every promise was held and every story went wrong without
the check, 1 if not, 2 for wrong flags, 3 if the demo could not run.`

const demoExample = `  exclusive demo
  exclusive demo --html timeline.html
  exclusive demo --postgres 'postgres://me@localhost/test'
  exclusive demo --dsn-file /run/secrets/dsn
  exclusive demo --mysql 'mysql://me:secret@localhost:3306/test'     MySQL, MariaDB`

// demo is one run of the command.
type demo struct {
	places []place
	asJSON bool
	all    bool   // print all timelines
	html   string // file for the picture
	// tamper changes the rig of every story that has holders. Tests use it.
	tamper func(*story.Rig)
}

func demoCommand(env environment) *cobra.Command {
	var d demo
	var named database
	var postgres, mysql string
	cmd := &cobra.Command{
		Use: "demo", Short: "Play what goes wrong with expiring locks, and how it is refused",
		Long: demoHelp, Example: demoExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, server := range []struct {
				flag, dsn, env string
				parse          func(dsn string) (*target.Target, error)
			}{
				{"postgres", postgres, "EXCLUSIVE_DEMO_POSTGRES", target.ParsePostgres},
				{"mysql", mysql, "EXCLUSIVE_DEMO_MYSQL", target.ParseMySQL},
			} {
				dsn, from := server.dsn, "--"+server.flag
				if !cmd.Flags().Changed(server.flag) {
					from = server.env
					if dsn = env.getenv(from); dsn == "" {
						continue
					}
				}
				t, err := server.parse(dsn)
				if err != nil {
					return usageError("%s: %w", from, err)
				}
				t.Flags = []string{"--dsn", "DSN"}
				d.places = append(d.places, serverAt(t.Product(), t))
			}
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			if named.dsn != "" || named.file != "" {
				t, err := named.target(env)
				if err != nil {
					return err
				}
				if t.IsRedis() {
					return usageError("the demo needs a database of SQL")
				}
				d.places = append(d.places, serverAt(t.Product(), t))
			}
			if d.places == nil {
				d.places = []place{sqliteIn("")}
			}
			return d.run(cmd.Context(), env)
		},
	}
	flags := cmd.Flags()
	named.dsnFlags(flags)
	flags.StringVar(&postgres, "postgres", "", "play on PostgreSQL at this `DSN`, not on SQLite")
	flags.StringVar(&mysql, "mysql", "", "play on MySQL or MariaDB at this `DSN`, not on SQLite")
	flags.BoolVar(&d.asJSON, "json", false, "write the result as JSON")
	flags.BoolVar(&d.all, "all", false, "print the timeline of every story")
	flags.StringVar(&d.html, "html", "", "write the timelines as a picture to this `file`")
	nameFile(flags, "html")
	return cmd
}

// result is what came out on one database.
type result struct {
	database string
	scenes   []scene
}

// scene is a story, played without the check and with it.
type scene struct {
	story              story.Story
	unguarded, guarded *story.Report
}

// ok reports whether the promise was held and the story went wrong without the
// check.
func (s scene) ok() bool { return s.unguarded.OK() && s.guarded.OK() }

func (r result) ok() bool {
	for _, s := range r.scenes {
		if !s.ok() {
			return false
		}
	}
	return true
}

func (d demo) run(ctx context.Context, env environment) (err error) {
	out := textOutput{w: env.stdout, all: d.all}
	if d.asJSON {
		out.w = io.Discard
	}
	var page *os.File
	if d.html != "" { // now, so that a wrong name is not a surprise in the end
		if looksLikeDSN(d.html) {
			return usageError("--html: this is no name of a file; for a DSN there is --dsn")
		}
		if page, err = os.Create(d.html); err != nil {
			return usageError("cannot write the picture: %w", err)
		}
		defer func() { err = errors.Join(err, page.Close()) }()
	}
	out.intro()
	var results []result
	good := true
	for _, p := range d.places {
		r, err := d.playAt(ctx, p, out)
		if err != nil {
			return fmt.Errorf("on %s: %w", p.name, err)
		}
		good = good && r.ok()
		results = append(results, r)
	}
	out.verdict(results)
	if d.asJSON {
		if err := writeJSON(env.stdout, results, good); err != nil {
			return err
		}
	}
	if page != nil {
		drawn, err := picture(results)
		if err != nil {
			return err
		}
		if _, err := page.Write(drawn); err != nil {
			return fmt.Errorf("write the picture: %w", err)
		}
		out.printf("\nThe timelines as a picture: %s\n", d.html)
	}
	if !good {
		return &exitError{code: exitNo}
	}
	return nil
}

// playAt plays all stories on one database.
func (d demo) playAt(ctx context.Context, p place, out textOutput) (_ result, err error) {
	s, err := openStage(ctx, p)
	if err != nil {
		return result{}, err
	}
	defer func() {
		if cerr := s.close(ctx); cerr != nil {
			err = errors.Join(err, fmt.Errorf("drop the demo's tables (prefix %s): %w", s.prefix, p.hide(cerr)))
		}
	}()
	r := result{database: s.name}
	out.database(s.name)
	for i, play := range s.plays(d.tamper) {
		var played scene
		for _, guard := range []story.Guard{story.GuardOff, story.GuardOn} {
			report, err := story.Patiently(func(longer time.Duration) (*story.Report, error) {
				s.longer = longer
				return play(ctx, fmt.Sprintf("demo/%d/%s/%d", i, guard, longer), guard)
			})
			if err == nil {
				err = report.Err
			}
			if ctx.Err() != nil {
				return result{}, errors.New("interrupted")
			}
			if err != nil {
				return result{}, p.hide(err)
			}
			played.story = report.Story
			if guard == story.GuardOn {
				played.guarded = report
			} else {
				played.unguarded = report
			}
		}
		out.timelines(played, i == 0)
		r.scenes = append(r.scenes, played)
	}
	return r, nil
}
