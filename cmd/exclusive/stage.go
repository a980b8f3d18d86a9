package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/story"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// lease is how long the leases of A last, which freezes. Those of its successors are
// longer than a story.
const (
	lease      = 200 * time.Millisecond
	afterLease = time.Minute
)

// stage is a database with the demo's tables: a destination where reports are
// stored, with leases of its own, and an issuer of leases that could as well be
// on another server. They share a prefix that nobody else has.
type stage struct {
	pool    *sql.DB
	adapter db.DB[*sql.Tx]
	name    string // of the database, with its version
	dialect db.Dialect
	tidy    func() error // after the pool was closed
	prefix  string
	made    []*fencing.Leases[*sql.Tx]
	undo    []string      // statements that drop what was made, to be run from the last
	copies  int           // backups that were made
	longer  time.Duration // by this factor are leases of A, on a slow machine
}

func (s *stage) issuer() string      { return s.prefix + "issuer_" }
func (s *stage) destination() string { return s.prefix + "dest_" }
func (s *stage) report() string      { return s.prefix + "report" }

// tidyWait bounds how long dropping the tables may take.
const tidyWait = 15 * time.Second

// openStage opens a place and makes the tables.
func openStage(ctx context.Context, p place) (*stage, error) {
	o, tidy, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	s := &stage{
		pool: o.SQL, adapter: o.Adapter, name: o.Name, dialect: o.Dialect, tidy: tidy,
		prefix: "exclusive_demo_" + strings.ToLower(rand.Text()[:8]) + "_",
	}
	if err := s.setUp(ctx); err != nil {
		return nil, errors.Join(p.hide(err), s.close(ctx))
	}
	return s, nil
}

func (s *stage) setUp(ctx context.Context) error {
	for _, prefix := range []string{s.issuer(), s.destination()} {
		if err := s.migrate(ctx, prefix); err != nil {
			return err
		}
	}
	return s.create(ctx, s.report(), "(name varchar(100) PRIMARY KEY, body varchar(100) NOT NULL, paid integer NOT NULL)")
}

// migrate makes the tables of package fencing.
func (s *stage) migrate(ctx context.Context, prefix string) error {
	list, err := templates.Of(s.dialect, []string{"fencing"})
	if err != nil {
		return err
	}
	names := templates.Names{Prefix: prefix}
	for _, t := range list {
		// Noted before it is made: if the answer is lost it may exist.
		s.undo = append(s.undo, fmt.Sprintf("DROP %s IF EXISTS %s", t.Object.Kind, t.Quoted(names)))
		if _, err := s.pool.ExecContext(ctx, t.Up(names)); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
	}
	return nil
}

// create makes a table of the demo's own.
func (s *stage) create(ctx context.Context, table, as string) error {
	s.undo = append(s.undo, "DROP TABLE IF EXISTS "+table)
	if _, err := s.pool.ExecContext(ctx, "CREATE TABLE "+table+" "+as); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	return nil
}

// close drops what was made, also when ctx has ended.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWait)
	defer cancel()
	var errs []error
	for _, l := range s.made {
		errs = append(errs, l.Close())
	}
	for len(s.undo) > 0 {
		last := len(s.undo) - 1
		_, err := s.pool.ExecContext(ctx, s.undo[last])
		errs = append(errs, err)
		s.undo = s.undo[:last]
	}
	return errors.Join(append(errs, s.pool.Close(), s.tidy())...)
}

// execer is a *sql.DB or a *sql.Tx.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// exec runs a statement whose placeholders are question marks.
func (s *stage) exec(ctx context.Context, q execer, query string, args ...any) error {
	_, err := q.ExecContext(ctx, s.dialect.Bind(query), args...)
	return err
}

// play plays one story on a key of its own.
type play func(ctx context.Context, key string, guard story.Guard) (*story.Report, error)

// plays are the stories in the order of the demo.
func (s *stage) plays(tamper func(*story.Rig)) []play {
	staged := func(tell func(context.Context, story.Rig, story.Guard) *story.Report, rig func(key string) (story.Rig, error)) play {
		return func(ctx context.Context, key string, guard story.Guard) (*story.Report, error) {
			if err := s.newReport(ctx, key); err != nil {
				return nil, err
			}
			r, err := rig(key)
			if err != nil {
				return nil, err
			}
			if tamper != nil {
				tamper(&r)
			}
			return tell(ctx, r, guard), nil
		}
	}
	return []play{
		staged(story.Zombie, s.oneDatabase),
		staged(story.CheckThenWrite, s.oneDatabase),
		s.lostAnswer,
		staged(story.IssuerRestored, func(key string) (story.Rig, error) { return s.twoDatabases(key, s.backUpIssuer) }),
		staged(story.DestinationRestored, func(key string) (story.Rig, error) { return s.twoDatabases(key, s.backUpDestination) }),
	}
}

// newReport adds the row that the stories write to.
func (s *stage) newReport(ctx context.Context, key string) error {
	return s.exec(ctx, s.pool, "INSERT INTO "+s.report()+" (name, body, paid) VALUES (?, '', 0)", key)
}

func (s *stage) rig(key string) story.Rig {
	return story.Rig{
		Key:       key,
		Unguarded: func(ctx context.Context, key, value string) error { return s.write(ctx, s.pool, key, value) },
		Read: func(ctx context.Context, key string) (body string, err error) {
			err = s.pool.QueryRowContext(ctx, s.dialect.Bind("SELECT body FROM "+s.report()+" WHERE name = ?"), key).Scan(&body)
			return body, err
		},
	}
}

func (s *stage) write(ctx context.Context, q execer, key, body string) error {
	return s.exec(ctx, q, "UPDATE "+s.report()+" SET body = ? WHERE name = ?", body, key)
}

// leases are those of one worker. A freezes, so it does not renew.
func (s *stage) leases(prefix, holder string) (*fencing.Leases[*sql.Tx], error) {
	cfg := fencing.Config{Prefix: prefix, TTL: afterLease, Holder: holder}
	if holder == "A" {
		cfg.TTL, cfg.NoRenew = s.longer*lease, true
	}
	l, err := fencing.New(s.adapter, cfg)
	if err == nil {
		s.made = append(s.made, l)
	}
	return l, err
}

// oneDatabase has the leases in the database where reports are stored. Each
// write is the last one of its grant: Commit.
func (s *stage) oneDatabase(key string) (story.Rig, error) {
	r := s.rig(key)
	for name, holder := range map[string]*story.Holder{"A": &r.A, "B": &r.B} {
		l, err := s.leases(s.destination(), name)
		if err != nil {
			return r, err
		}
		holder.Exclusive = l
		holder.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
			return l.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
				between()
				return s.write(ctx, tx, g.Key, value)
			})
		}
	}
	return r, nil
}

// twoDatabases has an issuer of leases and a destination with a guard, neither
// of which sees the other's tables. Holders write more than once: Check.
func (s *stage) twoDatabases(key string, backUp story.Backup) (story.Rig, error) {
	r := s.rig(key)
	r.BackUp = backUp
	guard, err := fencing.NewGuard(s.adapter, fencing.GuardConfig{Prefix: s.destination()})
	if err != nil {
		return r, err
	}
	for name, holder := range map[string]*story.Holder{"A": &r.A, "B": &r.B} {
		l, err := s.leases(s.issuer(), name)
		if err != nil {
			return r, err
		}
		holder.Exclusive = fencing.Guarded(l, guard)
		holder.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
			return db.InTx(ctx, s.adapter, func(ctx context.Context, tx *sql.Tx, _ db.Runner) error {
				if err := guard.Check(ctx, tx, g); err != nil {
					return err
				}
				between()
				return s.write(ctx, tx, g.Key, value)
			})
		}
	}
	return r, nil
}

// lostAnswer pays by operation id.
func (s *stage) lostAnswer(ctx context.Context, key string, guard story.Guard) (*story.Report, error) {
	if err := s.newReport(ctx, key); err != nil {
		return nil, err
	}
	l, err := s.leases(s.destination(), "A")
	if err != nil {
		return nil, err
	}
	pay := "UPDATE " + s.report() + " SET paid = paid + 1 WHERE name = ?"
	return story.LostAnswer(ctx, story.OnceRig{
		Key: key,
		Once: func(ctx context.Context, key, opID string, payload []byte, after func() error) (result []byte, err error) {
			err = db.InTx(ctx, s.adapter, func(ctx context.Context, tx *sql.Tx, _ db.Runner) error {
				result, err = l.Once(ctx, tx, opID, payload, func(ctx context.Context) ([]byte, error) {
					if err := s.exec(ctx, tx, pay, key); err != nil {
						return nil, err
					}
					return []byte("receipt 4711"), after()
				})
				return err
			})
			return result, err
		},
		Plain: func(ctx context.Context, key string) error { return s.exec(ctx, s.pool, pay, key) },
		Effects: func(ctx context.Context, key string) (n int, err error) {
			err = s.pool.QueryRowContext(ctx, s.dialect.Bind("SELECT paid FROM "+s.report()+" WHERE name = ?"), key).Scan(&n)
			return n, err
		},
	}, guard), nil
}
