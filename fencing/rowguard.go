package fencing

import (
	"context"
	"errors"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// RowConfig names the columns of a table of the application's own that hold a
// mark. Both mark columns may be NULL until the first write.
type RowConfig struct {
	Schema      string   // empty: what the connection finds by itself
	Table       string   // required
	KeyColumns  []string // required: what identifies a row
	TokenColumn string   // empty: "fence_token"; a 64-bit integer
	// GrantColumn is text of at least 26 characters, which is the length of the ids
	// that grants of this toolkit have; longer for issuers whose ids are. Empty:
	// "fence_grant".
	GrantColumn string
}

// RowGuard is a Guard whose marks are columns of the rows that it protects. It
// is safe for concurrent use.
type RowGuard[Tx any] struct {
	server *strategy.Server[Tx, rowStatements]
	keys   int // how many columns they have
}

// NewRowGuard makes a RowGuard. It does no I/O; the first Check looks at the types
// of the mark's columns: ErrSchema if they are too small.
func NewRowGuard[Tx any](d db.DB[Tx], cfg RowConfig) (*RowGuard[Tx], error) {
	if err := strategy.ValidAdapter("fencing", d); err != nil {
		return nil, err
	}
	cfg.TokenColumn = strategy.Default(cfg.TokenColumn, "fence_token")
	cfg.GrantColumn = strategy.Default(cfg.GrantColumn, "fence_grant")
	errs := []error{
		strategy.ValidTable(cfg.Schema, cfg.Table),
		ident.Check("TokenColumn", cfg.TokenColumn),
		ident.Check("GrantColumn", cfg.GrantColumn),
	}
	if len(cfg.KeyColumns) == 0 {
		errs = append(errs, errors.New("KeyColumns is empty"))
	}
	for _, c := range cfg.KeyColumns {
		errs = append(errs, ident.Check("KeyColumns", c))
	}
	if err := invalidConfig(errs...); err != nil {
		return nil, err
	}
	texts := func(kind db.Dialect) rowStatements { return rowText(kind, cfg) }
	m := &RowGuard[Tx]{strategy.NewServer(d, "fencing", texts, nil), len(cfg.KeyColumns)}
	m.server.Mend = "add the mark's columns to the table that RowConfig names"
	m.server.Columns = strategy.Columns{Schema: cfg.Schema, List: []strategy.Column{
		{Table: cfg.Table, Name: cfg.TokenColumn, Wide: true},
		{Table: cfg.Table, Name: cfg.GrantColumn, Length: strategy.GrantIDLength},
	}}
	return m, nil
}

// Check accepts or refuses g for the row whose key columns are id, in the
// caller's transaction, and keeps the row locked until that ends. ErrNoRow if
// there is no such row. The values of id are strings, integers or byte slices.
func (m *RowGuard[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant, id ...any) error {
	if err := strategy.ValidGrant("check", g); err != nil {
		return err
	}
	args, err := strategy.RowValues(id, m.keys)
	if err != nil {
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrInvalid, Err: err}
	}
	q, r, err := m.server.Within(ctx, "check", g.Key, tx)
	if err != nil {
		return err
	}
	res, err := r.Exec(ctx, q.accept, append([]any{g.Token, g.ID, g.Token, g.Token, g.ID}, args...)...)
	if err != nil {
		return m.server.Fail(ctx, "check", g.Key, err)
	}
	if res.Rows > 0 {
		return nil
	}
	holder := &exclusive.Holder{}
	found, err := strategy.One(ctx, r, q.read, args, func(scan db.Scan) error { return scan(&holder.Token, &holder.ID) })
	switch {
	case err != nil:
		return m.server.Fail(ctx, "check", g.Key, err)
	case !found:
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrNoRow}
	case holder.Token == g.Token && holder.ID == g.ID:
		return nil // the same grant again: a row that stays as it is need not count on MySQL
	}
	return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrFenced, Holder: holder}
}

// rowStatements is the SQL of a RowGuard.
type rowStatements struct{ accept, read string }

func rowText(kind db.Dialect, cfg RowConfig) rowStatements {
	quote, lock := strategy.Quote(kind), ``
	if kind == db.MySQL || kind == db.MariaDB {
		// A locking read: a plain one could show an old snapshot.
		lock = ` FOR UPDATE`
	}
	q := func(name string) string { return ident.Quote(quote, "", name) }
	where := make([]string, len(cfg.KeyColumns))
	for i, c := range cfg.KeyColumns {
		where[i] = q(c) + ` = ?`
	}
	names := strings.NewReplacer(
		"{table}", ident.Quote(quote, cfg.Schema, cfg.Table),
		"{token}", q(cfg.TokenColumn), "{grant}", q(cfg.GrantColumn),
		"{row}", strings.Join(where, " AND "),
	)
	text := func(query string) string { return kind.Bind(names.Replace(query)) }
	return rowStatements{
		accept: text(`UPDATE {table} SET {token} = ?, {grant} = ?
			WHERE ({token} IS NULL OR {token} < ? OR ({token} = ? AND {grant} = ?)) AND {row}`),
		read: text(`SELECT COALESCE({token}, 0), COALESCE({grant}, '') FROM {table} WHERE {row}`) + lock,
	}
}
