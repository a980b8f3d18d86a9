package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
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
		g.mysql(ctx)
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
func (g *gatherer) fail(name string, err error) { g.Unread[name] = g.target.Hide(err).Error() }

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
		g.Differences = differences
	}
	g.set("strategies", strings.Join(asked, ", "))
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
