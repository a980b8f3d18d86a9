package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

const migrationsHelp = `The strategies keep their state in a few tables. An application makes these in
its own migrations: copy adds them to its folder, as files that are reviewed,
numbered and run like all others. Nothing here runs the migrations of an
application, or keeps a table of versions.

For a database that has no application there is exclusive init.

The exit codes of these commands are in their help; without one of them it is 2, for
wrong arguments.`

func migrationsCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "migrations", Short: "List, copy and check the migrations that make the tables",
		Long: migrationsHelp,
	}
	groupOnly(cmd, env)
	cmd.AddCommand(migrationsListCommand(env), migrationsCopyCommand(env), migrationsCheckCommand(env))
	return cmd
}

// picked is the flags that say which templates are meant.
type picked struct {
	dialect    string
	strategies []string
}

// flags adds the flags; noStrategies and noDialect say what it means that none is
// given.
func (p *picked) flags(cmd *cobra.Command, noStrategies, noDialect string) {
	p.strategyFlag(cmd, noStrategies)
	var dialects []string
	for _, d := range templates.Dialects() {
		dialects = append(dialects, d.String())
	}
	cmd.Flags().StringVar(&p.dialect, "dialect", "", "SQL of the files: "+strings.Join(dialects, ", ")+" ("+noDialect+")")
	completeValues(cmd, "dialect", dialects...)
}

func (p *picked) strategyFlag(cmd *cobra.Command, without string) {
	cmd.Flags().StringSliceVar(&p.strategies, "strategy", nil, "only these `strategies`, with commas between them: "+strings.Join(templates.Strategies(), ", ")+" (default: "+without+")")
	completeValues(cmd, "strategy", templates.Strategies()...)
}

// selection is what is meant, of the dialect that was named or of another.
func (p *picked) selection(otherwise db.Dialect, names templates.Names) (s templates.Selection, err error) {
	s = templates.Selection{Dialect: otherwise, Strategies: p.strategies, Names: names}
	if p.dialect != "" {
		if s.Dialect, err = templates.ParseDialect(p.dialect); err != nil {
			return s, usageError("--dialect: %w", err)
		}
	}
	if s.Dialect == 0 {
		return s, usageError("--dialect is missing")
	}
	if _, err := templates.Of(s.Dialect, s.Strategies); err != nil {
		return s, usageError("--strategy: %w", err)
	}
	return s, validNames(names)
}

const migrationsListHelp = `Lists the migrations, with the privileges that the application's role needs on
what each makes. Package casupdate has none: it works on a table of the
application's own, for which casupdate_columns.sql.example, beside the files of
package migrations, shows the columns.

The exit code is 0, 2 for wrong flags, or 3 if it could not be written.`

const migrationsListExample = `  exclusive migrations list
  exclusive migrations list --dialect postgres --strategy fencing --json`

func migrationsListCommand(env environment) *cobra.Command {
	var p picked
	var d database
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the migrations that there are",
		Long: migrationsListHelp, Example: migrationsListExample, Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			dialects := templates.Dialects()
			var listed []listedTemplate
			for _, dialect := range dialects {
				s, err := p.selection(dialect, d.names())
				if err != nil {
					return err
				}
				if s.Dialect == dialect {
					listed = append(listed, list(s)...)
				}
			}
			return write(env.stdout, asJSON, listed, writeList)
		},
	}
	p.flags(cmd, "all", "default: all")
	d.nameFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the list as JSON")
	return cmd
}

// listedTemplate is a template in the output of list.
type listedTemplate struct {
	Dialect  string `json:"dialect"`
	Strategy string `json:"strategy"`
	Template string `json:"template"`
	Version  int    `json:"version"`
	Object   string `json:"object"`
	About    string `json:"about"`
	Grant    string `json:"grant,omitempty"`
}

func list(s templates.Selection) (listed []listedTemplate) {
	of, err := templates.Of(s.Dialect, s.Strategies)
	if err != nil {
		panic(err) // the selection was checked
	}
	for _, t := range of {
		listed = append(listed, listedTemplate{
			t.Dialect.String(), t.Strategy, t.Name, t.Version,
			string(t.Object.Kind) + " " + t.Quoted(s.Names), t.About, t.Grant(s.Names),
		})
	}
	return listed
}

func writeList(w io.Writer, listed []listedTemplate) error {
	columns := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, t := range listed {
		fmt.Fprintf(columns, "%s\t%s\t%s\n", t.Dialect, t.Template, t.About)
	}
	return columns.Flush()
}

const migrationsCopyHelp = `Copies migrations into the folder of an application's own, numbered on from what
is there: the next number with as many digits, or a timestamp if the files have
timestamps. The format is that of the files that are there: golang-migrate (a file
for up and one for down) or goose (one file for both).

Nothing is overwritten: what the folder has already is left as it is, and what is
missing is added. Either all files are written or none. --prefix and --schema go
into the SQL; give the same to the strategies' Config. The schema must exist.

The first line of each file says what it is a copy of. Keep it: check, and another
copy, know the files by it, and not by their names.

The exit code is 0 if the files are there, 2 for wrong flags, 3 if they could not
be written.`

const migrationsCopyExample = `  exclusive migrations copy --dialect postgres --dir db/migrations --strategy fencing
  exclusive migrations copy --dialect mysql --dir db/migrations --format goose --prefix app_
  exclusive migrations copy --dialect postgres --dir db/migrations --schema locks --json`

func migrationsCopyCommand(env environment) *cobra.Command {
	var p picked
	var d database
	var f folderFlags
	var numbering string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "copy", Short: "Copy migrations into the folder of an application's own",
		Long: migrationsCopyHelp, Example: migrationsCopyExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.selection(0, d.names())
			if err != nil {
				return err
			}
			o := templates.CopyOptions{Selection: s, Dir: f.dir, Format: templates.Format(f.format), Numbering: templates.Numbering(numbering), Now: time.Now()}
			if err := o.Validate(); err != nil {
				return usageError("%w", err)
			}
			done, err := templates.Copy(cmd.Context(), o)
			if err != nil {
				return err
			}
			return write(env.stdout, asJSON, done, writeCopied)
		},
	}
	p.flags(cmd, "all", "needed")
	f.flags(cmd, "needed")
	d.nameFlags(cmd.Flags())
	cmd.Flags().StringVar(&numbering, "numbering", "", "sequential or timestamp, if not as the files that are there")
	completeValues(cmd, "numbering", string(templates.Sequential), string(templates.Timestamp))
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what was done as JSON")
	return cmd
}

// folderFlags is the flags that name a folder of migrations.
type folderFlags struct{ dir, format string }

func (f *folderFlags) flags(cmd *cobra.Command, without string) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "folder of the application's migrations ("+without+")")
	cmd.Flags().StringVar(&f.format, "format", "", "golang-migrate or goose, if it cannot be seen from the files that are there")
	completeValues(cmd, "format", string(templates.GolangMigrate), string(templates.Goose))
	if err := cmd.MarkFlagDirname("dir"); err != nil {
		panic(err) // there is no such flag
	}
}

func writeCopied(w io.Writer, done templates.Copied) error {
	var b strings.Builder
	for _, f := range done.Present {
		fmt.Fprintf(&b, "there already  %s\n", f.Path)
	}
	for _, f := range done.Written {
		fmt.Fprintf(&b, "written        %s\n", f.Path)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const migrationsCheckHelp = `Compares what there is with the migrations. Of a folder (--dir) it looks at the
files: missing ones, other SQL (comments do not count), older versions. Of a
database it looks at the tables: columns and their types, primary keys, settings
with which tokens could go back, and what the user of the connection may not do.
It changes nothing.

With --dir alone no database is asked. Without --strategy it looks at the
strategies of which there is something.

` // sqlHelp follows

const migrationsCheckExit = `

The exit code is 0 if nothing differs, 1 if something does, 2 for wrong flags, 3 if
the check could not be made.`

const migrationsCheckExample = `  exclusive migrations check --dialect postgres --dir db/migrations
  exclusive migrations check --dsn postgres://app:secret@localhost/shop --strategy fencing,uniquetask
  exclusive migrations check --dir db/migrations --dsn-file /run/secrets/dsn --json`

func migrationsCheckCommand(env environment) *cobra.Command {
	var p picked
	var d database
	var f folderFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use: "check", Short: "Say in what a folder or a database differs from the migrations",
		Long: migrationsCheckHelp + sqlHelp + migrationsCheckExit, Example: migrationsCheckExample, Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagSet(cmd, "dsn", "dsn-file"); err != nil {
				return err
			}
			c := checked{Folder: []templates.Difference{}, Database: []schema.Difference{}}
			if err := c.check(cmd.Context(), env, p, d, f); err != nil {
				return err
			}
			c.OK = len(c.Folder)+len(c.Database) == 0
			if err := write(env.stdout, asJSON, c, writeChecked); err != nil {
				return err
			}
			if !c.OK {
				return &exitError{code: exitNo}
			}
			return nil
		},
	}
	p.flags(cmd, "those of which there is something", "needed without a database")
	f.flags(cmd, "default: no folder is looked at")
	d.databaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what differs as JSON")
	return cmd
}

// checked is what check has found.
type checked struct {
	OK       bool                   `json:"ok"`
	Folder   []templates.Difference `json:"folder"`
	Database []schema.Difference    `json:"database"`
}

func (c *checked) check(ctx context.Context, env environment, p picked, d database, f folderFlags) error {
	var dialect db.Dialect
	if f.dir == "" || d.dsn != "" || d.file != "" {
		err := d.with(ctx, env, func(o *target.Open) error {
			s, err := p.selection(o.Dialect, d.names())
			if err != nil {
				return err
			}
			if s.Dialect != o.Dialect {
				return usageError("--dialect is %s, and the database speaks %s", s.Dialect, o.Dialect)
			}
			dialect = o.Dialect
			found, _, err := schema.Check(ctx, o.SQL, s)
			c.Database = append(c.Database, schema.HaveMade(found, target.Line(d.flags(), "init"))...)
			return err
		})
		if err != nil {
			return err
		}
	}
	if f.dir == "" {
		return nil
	}
	s, err := p.selection(dialect, d.names())
	if err != nil {
		return err
	}
	if err := (templates.CopyOptions{Selection: s, Dir: f.dir, Format: templates.Format(f.format)}).Validate(); err != nil {
		return usageError("%w", err)
	}
	found, err := templates.CheckFolder(s, f.dir, templates.Format(f.format))
	c.Folder = append(c.Folder, found...)
	return err
}

func writeChecked(w io.Writer, c checked) error {
	var b strings.Builder
	for _, d := range c.Folder {
		where := d.Template
		if d.Path != "" {
			where = d.Path
		}
		fmt.Fprintf(&b, "%-9s  %s: %s\n", d.Problem, where, d.Text)
	}
	for _, d := range c.Database {
		fmt.Fprintf(&b, "%-9s  %s: %s\n%11s%s\n", d.Problem, d.Object, d.Text, "", d.Mend)
	}
	if c.OK {
		b.WriteString("nothing differs\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
