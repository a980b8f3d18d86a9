package redisbackend

import (
	"context"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// DefaultTablePrefix is what the name of the table of Tokens begins with.
const DefaultTablePrefix = strategy.DefaultPrefix

// TokensConfig configures Tokens. The zero value is ready to use.
type TokensConfig struct {
	// Schema is the schema (MySQL, MariaDB: the database; SQLite: the attached
	// database) of the table. Empty: what the connection finds by itself.
	Schema string
	// Prefix is what the name of the table begins with. Empty:
	// DefaultTablePrefix.
	Prefix string
}

// Tokens is a TokenSource in a database, one row for each key. It is safe for
// concurrent use. Tx is the adapter's transaction type.
type Tokens[Tx any] struct {
	server *strategy.Server[Tx, tokenSQL]
}

// NewTokens makes a source of tokens from an adapter: pgxdb.New,
// sqldb.NewPostgres, sqldb.NewSQLite or mysqldb.New. Its table is in the
// redisbackend files of package migrations. Best is the database where results
// are stored: then tokens are as durable as the marks that they are compared
// with.
func NewTokens[Tx any](d db.DB[Tx], cfg TokensConfig) (*Tokens[Tx], error) {
	if err := strategy.ValidAdapter("redisbackend tokens", d); err != nil {
		return nil, err
	}
	cfg.Prefix = strategy.Default(cfg.Prefix, DefaultTablePrefix)
	if err := strategy.InvalidConfig("redisbackend tokens", strategy.ValidNames(cfg.Schema, cfg.Prefix, "counter")); err != nil {
		return nil, err
	}
	texts := func(d db.Dialect) tokenSQL {
		return newTokenSQL(d, strategy.Table(d, cfg.Schema, cfg.Prefix, "counter"))
	}
	t := &Tokens[Tx]{server: strategy.NewServer(d, "redisbackend", texts, nil)}
	t.server.Columns = strategy.Columns{Schema: cfg.Schema, Prefix: cfg.Prefix, Ours: true, List: []strategy.Column{
		{Table: "counter", Name: "counter_key", Key: true},
		{Table: "counter", Name: "token", Wide: true},
	}}
	return t, nil
}

// Next implements TokenSource. It is one round trip, committed at once.
func (t *Tokens[Tx]) Next(ctx context.Context, key string) (token int64, err error) {
	if err := exclusive.ValidateKey("draw a token", key); err != nil {
		return 0, err
	}
	// A token whose answer was lost is a gap, which does no harm.
	err = t.server.Ask(ctx, "draw a token", key, func(ctx context.Context, q tokenSQL) (err error) {
		token, err = q.next(ctx, t.server.DB, key)
		return err
	})
	return token, err
}

// Advance makes the next token of key greater than atLeast.
func (t *Tokens[Tx]) Advance(ctx context.Context, key string, atLeast int64) error {
	if err := strategy.ValidAdvance(key, atLeast); err != nil {
		return err
	}
	return t.server.Ask(ctx, "advance", key, func(ctx context.Context, q tokenSQL) error { return q.advance(ctx, t.server.DB, key, atLeast) })
}

// tokenSQL is the SQL of Tokens on one kind of server. Each is one statement
// that draws under the row's lock, so tokens come out in the order of commits.
type tokenSQL struct {
	mysql           bool // the token comes back as LAST_INSERT_ID; placeholders have no numbers
	nextQ, advanceQ string
}

func newTokenSQL(d db.Dialect, table string) tokenSQL {
	f := func(query string) string { return strings.ReplaceAll(query, "{counter}", table) }
	switch d {
	case db.Postgres, db.SQLite: // the same but for the placeholders
		if d == db.SQLite {
			f = func(query string) string { return strings.NewReplacer("{counter}", table, "$", "?").Replace(query) }
		}
		return tokenSQL{
			nextQ: f(`INSERT INTO {counter} AS c (counter_key, token) VALUES ($1, 1)
				ON CONFLICT (counter_key) DO UPDATE SET token = c.token + 1
				RETURNING token`),
			advanceQ: f(`INSERT INTO {counter} AS c (counter_key, token) VALUES ($1, $2)
				ON CONFLICT (counter_key) DO UPDATE SET token = EXCLUDED.token WHERE c.token < EXCLUDED.token`),
		}
	default:
		return tokenSQL{
			mysql: true,
			// LAST_INSERT_ID(expr) comes back in the same answer (manual,
			// "Information Functions").
			nextQ: f(`INSERT INTO {counter} (counter_key, token) VALUES (?, LAST_INSERT_ID(1))
				ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1)`),
			advanceQ: f(`INSERT INTO {counter} (counter_key, token) VALUES (?, ?)
				ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`),
		}
	}
}

func (q tokenSQL) next(ctx context.Context, r db.Runner, key string) (token int64, err error) {
	if q.mysql {
		res, err := r.Exec(ctx, q.nextQ, []byte(key))
		if err == nil && res.LastID == 0 {
			err = &exclusive.Error{Op: "draw a token", Key: key, Kind: exclusive.ErrSchema, Hint: "the counter table has a trigger, which keeps LAST_INSERT_ID from coming back; drop it"}
		}
		return res.LastID, err
	}
	_, err = strategy.One(ctx, r, q.nextQ, []any{[]byte(key)}, func(scan db.Scan) error { return scan(&token) })
	return token, err
}

func (q tokenSQL) advance(ctx context.Context, r db.Runner, key string, atLeast int64) error {
	args := []any{[]byte(key), atLeast}
	if q.mysql {
		args = append(args, atLeast)
	}
	_, err := r.Exec(ctx, q.advanceQ, args...)
	return err
}
