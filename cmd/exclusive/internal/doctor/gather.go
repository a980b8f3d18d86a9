package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/internal/templates"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// Options are what the user says of the installation.
type Options struct {
	// Prefix and Schema are as in the Config of the strategies.
	Prefix, Schema string
	// Strategies are those that are used. None: whichever has a table.
	Strategies []string
	// Pool is the number of connections of each process, Processes how many
	// there are. 0 is not known.
	Pool, Processes int
	// AnswerWait bounds every question to the server. 0 stands for 10 s.
	AnswerWait time.Duration
}

// Gather asks the server. What it cannot learn is in Unread. The error is that
// of ctx.
func Gather(ctx context.Context, t *target.Target, o Options) (*Facts, error) {
	g := &gatherer{Facts: newFacts(t.Kind()), target: t, options: o, answerWait: cmp.Or(o.AnswerWait, 10*time.Second)}
	g.set("exclusive init", t.Line("init"))
	g.set("pool", o.Pool)
	g.set("processes", o.Processes)
	pool, err := t.Pool(target.Options{Conns: 2, NoPrepare: true})
	if err != nil {
		g.fail("@connect", err)
		return g.Facts, nil
	}
	defer func() { _ = pool.Close() }()
	g.pool = pool.SQL
	switch g.Kind {
	case postgres:
		g.postgres(ctx)
	case mysql:
		g.mysql(ctx, pool.Adapter)
	case sqlite:
		g.sqlite(ctx)
	case redis:
		g.redis(ctx, pool)
	}
	g.set("oldest", product.Of(g.Kind).Oldest)
	return g.Facts, ctx.Err()
}

// gatherer asks, and notes answers and failures.
type gatherer struct {
	*Facts
	target  *target.Target
	options Options
	pool    *sql.DB

	answerWait time.Duration
}

// set notes a fact that is no setting.
func (g *gatherer) set(name string, value any) { g.Values["@"+name] = fmt.Sprint(value) }

// fail notes why a value is not known.
func (g *gatherer) fail(name string, err error) {
	g.Unread[name] = target.OneLine(g.target.Hide(err)).Error()
}

// query notes the columns of the one row of a query under names.
func (g *gatherer) query(ctx context.Context, text string, names []string, args ...any) bool {
	values := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	err := target.Within(ctx, g.answerWait, func(ctx context.Context) error { return g.pool.QueryRowContext(ctx, text, args...).Scan(into...) })
	if err != nil {
		for _, name := range names {
			g.fail(name, err)
		}
		return false
	}
	for i, name := range names {
		if values[i].Valid {
			g.Values[name] = values[i].String
		}
	}
	return true
}

// pairs notes rows of name and value.
func (g *gatherer) pairs(ctx context.Context, text string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, g.answerWait)
	defer cancel()
	rows, err := g.pool.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name, value sql.NullString
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		g.Values[strings.ToLower(name.String)] = value.String
	}
	return rows.Err()
}

// failAll notes one failure for many names.
func (g *gatherer) failAll(err error, names ...string) {
	for _, name := range names {
		if !g.known(name) {
			g.fail(name, err)
		}
	}
}

// clock compares clocks: the server's is asked for by ask, in microseconds since
// 1970. Of several tries the fastest is the most exact.
func (g *gatherer) clock(ctx context.Context, ask func(context.Context) (int64, error)) {
	best := time.Duration(-1)
	for range 5 {
		begin := time.Now()
		server, err := ask(ctx)
		if err != nil {
			g.fail("@skew", err)
			return
		}
		took := time.Since(begin)
		if best >= 0 && took >= best {
			continue
		}
		best = took
		middle := begin.Add(took / 2).UnixMicro()
		g.set("skew", server-middle)
		g.set("skew_width", (took/2).Microseconds()+1)
	}
}

func (g *gatherer) sqlClock(ctx context.Context, now string) {
	g.clock(ctx, func(ctx context.Context) (n int64, err error) {
		ctx, cancel := context.WithTimeout(ctx, g.answerWait)
		defer cancel()
		err = g.pool.QueryRowContext(ctx, "SELECT "+now).Scan(&n)
		return n, err
	})
}

// tables compares those of the strategies that the user names, or of each that
// has one, with the migrations.
func (g *gatherer) tables(ctx context.Context, d db.Dialect) {
	ctx, cancel := context.WithTimeout(ctx, 3*g.answerWait)
	defer cancel()
	asked := g.options.Strategies
	s := templates.Selection{Dialect: d, Strategies: asked, Names: templates.Names{Schema: g.options.Schema, Prefix: g.options.Prefix}}
	differences, present, err := schema.Check(ctx, g.pool, s)
	if err != nil {
		g.fail("@schema", err)
		return
	}
	if len(asked) == 0 {
		asked = present
	}
	if len(asked) > 0 {
		g.Differences = schema.HaveMade(differences, g.target.Line("init"))
	}
	g.set("strategies", strings.Join(asked, ", "))
	if slices.Contains(asked, "fencing") {
		g.tokens(ctx, s)
	}
}

// tokens compares the sequence that tokens are drawn from with those of the leases,
// if there is one and both can be used.
func (g *gatherer) tokens(ctx context.Context, s templates.Selection) {
	names := make(map[string]string) // quoted, by the names of the templates
	list, err := templates.Of(s.Dialect, []string{"fencing"})
	if err != nil {
		g.fail("@token_highest", err)
		return
	}
	for _, t := range list {
		if t.Name == "fencing_token" && t.Object.Kind != templates.Sequence {
			return
		}
		bad := slices.ContainsFunc(g.Differences, func(d schema.Difference) bool { return d.Template == t.Name && d.Problem != schema.Setting })
		if (t.Name == "fencing_token" || t.Name == "fencing_lease") && bad {
			return // told already
		}
		names[t.Name] = t.Quoted(s.Names)
	}
	sequence, lease := names["fencing_token"], names["fencing_lease"]
	text := "'" + strings.ReplaceAll(sequence, "'", "''") + "'"
	// The number that was drawn last: NULL if this account may not see it.
	drawn, highest := "", "SELECT COALESCE(MAX(token), 0) FROM "+lease
	switch s.Dialect {
	case db.Postgres:
		drawn = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM " + sequence
		if ok, _ := g.may(ctx, text); !ok { // USAGE alone, which strategies need, shows it only after the first token
			drawn = "SELECT pg_catalog.pg_sequence_last_value(" + text + "::regclass)"
		}
	default:
		drawn = "SELECT next_not_cached_value - 1 FROM " + sequence
		// The driver does not tell the server that nobody waits any more.
		highest = fmt.Sprintf("SET STATEMENT max_statement_time = %g FOR %s", g.answerWait.Seconds(), highest)
	}
	if !g.query(ctx, drawn, []string{"@token_drawn"}) {
		g.Unread["@token_highest"] = g.Unread["@token_drawn"]
		return
	}
	hidden := !g.known("@token_drawn")
	if hidden {
		g.set("token_drawn", 0)
	}
	g.set("sequence", sequence)
	g.set("sequence_text", text)
	if !g.query(ctx, highest, []string{"@token_highest"}) {
		return
	}
	last, lastErr := strconv.ParseInt(g.get("@token_drawn"), 10, 64)
	most, mostErr := strconv.ParseInt(g.get("@token_highest"), 10, 64)
	if err := errors.Join(lastErr, mostErr); err != nil {
		delete(g.Values, "@token_highest")
		g.fail("@token_highest", err)
		return
	}
	if hidden && most > 0 {
		delete(g.Values, "@token_highest")
		g.Unread["@token_highest"] = "this account may not see where the sequence stands, from which no token was drawn yet, and a lease has token " + strconv.FormatInt(most, 10)
		return
	}
	g.set("token_next", most+1)
	g.set("token_behind", most > last)
}

// may reports whether the account may read a sequence of PostgreSQL.
func (g *gatherer) may(ctx context.Context, sequence string) (ok bool, err error) {
	err = target.Within(ctx, g.answerWait, func(ctx context.Context) error {
		return g.pool.QueryRowContext(ctx, "SELECT has_sequence_privilege("+sequence+", 'SELECT')").Scan(&ok)
	})
	return ok, err
}

// connect asks the first question.
func (g *gatherer) connect(ctx context.Context, text string, names ...string) bool {
	if g.query(ctx, text, names) {
		return true
	}
	g.Unread["@connect"] = g.Unread[names[0]]
	return false
}

func (g *gatherer) redisPrefix() string {
	return strategy.Default(g.options.Prefix, redisbackend.DefaultPrefix)
}

// atoi reads a number that a server wrote.
func atoi(s string) int {
	n, _ := strconv.Atoi(strings.TrimSpace(s))
	return n
}
