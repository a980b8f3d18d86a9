package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// envDSN is the variable that names the database if no flag does.
const envDSN = "EXCLUSIVE_DSN"

// databaseHelp is what the help of a command that embeds database says of it, and
// sqlHelp that of one for which Redis will not do.
var (
	databaseHelp = helpOf(target.Forms) + "\n\nOf a Redis Cluster any node will do that answers."
	sqlHelp      = helpOf(target.SQLForms)
)

func helpOf(forms string) string {
	return `The database is named by --dsn, by the first line of --dsn-file, or by the
variable EXCLUSIVE_DSN, in this order. The last two keep a password out of the
list of processes. It is one of

  ` + strings.ReplaceAll(forms, "\n", "\n  ") + `

In user and password / ? # % @ are written as %2F %3F %23 %25 %40.`
}

// durationHelp is for commands with flags that are durations.
const durationHelp = "\n\nDurations are written as 90s, 10m or 1h30m."

// database is the flags that name a database and the tables in it. Commands
// embed it.
type database struct {
	dsn, file string

	// prefix and schema are as in the Config of the strategies: empty means
	// the default.
	prefix, schema string

	create bool // a file of SQLite that is not there is made
}

// databaseFlags adds the flags.
func (d *database) databaseFlags(flags *pflag.FlagSet) {
	d.dsnFlags(flags)
	d.nameFlags(flags)
}

// dsnFlags adds only the flags that name the database.
func (d *database) dsnFlags(flags *pflag.FlagSet) {
	flags.StringVar(&d.dsn, "dsn", "", "the database, as a URL (visible in the list of processes; see --dsn-file)")
	flags.StringVar(&d.file, "dsn-file", "", "`file` whose first line is the database's URL")
	nameFile(flags, "dsn-file")
}

// nameFlags adds only the flags that say how tables are named.
func (d *database) nameFlags(flags *pflag.FlagSet) {
	flags.StringVar(&d.prefix, "prefix", "", "what the names of the tables begin with (default \"exclusive_\"; Redis: \"exclusive:\")")
	flags.StringVar(&d.schema, "schema", "", "schema of the tables (MySQL, MariaDB: their database; default: that of the connection)")
}

// target is the database that was named. Nothing has been sent to it, and no
// error quotes the DSN. After Open, errors may: see Target.Hide.
func (d *database) target(env environment) (*target.Target, error) {
	dsn, from := d.dsn, "--dsn"
	switch {
	case d.dsn != "" && d.file != "":
		return nil, usageError("--dsn and --dsn-file exclude each other")
	case d.dsn != "":
	case d.file != "":
		var err error
		if dsn, err = firstLine(d.file); err != nil {
			return nil, usageError("--dsn-file: %w", err)
		}
		from = "--dsn-file"
	default:
		dsn, from = env.getenv(envDSN), envDSN
	}
	if dsn == "" {
		return nil, usageError("no database is named: use --dsn, --dsn-file or %s", envDSN)
	}
	t, err := target.Parse(dsn)
	if err != nil {
		return nil, usageError("%s: %w", from, err)
	}
	t.AnswerWait, t.Flags = env.answerWait, d.flags()
	switch {
	case !t.IsRedis():
		return t, validNames(d.names())
	case d.schema != "":
		return nil, usageError("--schema: Redis has none")
	}
	return t, nil
}

// flags name the same database and tables again, from whatever directory. A DSN is
// not echoed: a shell that is given the placeholder has it refused, and does not look
// into its environment, where another may be.
func (d *database) flags() (list []string) {
	if d.dsn != "" {
		list = append(list, "--dsn", "DSN")
	}
	if d.file != "" {
		file, err := filepath.Abs(d.file)
		if err != nil {
			file = d.file
		}
		list = append(list, "--dsn-file", file)
	}
	if d.prefix != "" {
		list = append(list, "--prefix", d.prefix)
	}
	if d.schema != "" {
		list = append(list, "--schema", d.schema)
	}
	return list
}

// names are those of the tables.
func (d *database) names() templates.Names {
	return templates.Names{Schema: d.schema, Prefix: d.prefix}
}

func validNames(n templates.Names) error {
	if err := n.Validate(); err != nil {
		return usageError("--prefix, --schema: %w", err)
	}
	return nil
}

// with opens the database of SQL that was named, with one connection.
func (d *database) with(ctx context.Context, env environment, f func(*target.Open) error) (err error) {
	t, err := d.target(env)
	if err != nil {
		return err
	}
	if t.IsRedis() {
		return usageError("Redis has no tables; name the database of SQL")
	}
	t.Create = d.create
	o, err := t.Open(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = t.Hide(errors.Join(err, o.Close())) }()
	return f(o)
}

// maxDSN is more than any DSN has.
const maxDSN = 64 << 10

// firstLine reads what a file begins with.
func firstLine(path string) (line string, err error) {
	if looksLikeDSN(path) {
		return "", errors.New("this is no name of a file; for the DSN itself there is --dsn, or " + envDSN)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, maxDSN))
	if err != nil {
		return "", err
	}
	line, _, _ = strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("%s: its first line is empty", path)
	}
	return line, nil
}

// looksLikeDSN reports whether what stands in place of a file may be a DSN, of whatever
// form, which no message may quote.
func looksLikeDSN(path string) bool {
	return strings.Contains(path, "://") || strings.Contains(path, "@") && strings.Contains(path, "(") || strings.Contains(path, "password=")
}
