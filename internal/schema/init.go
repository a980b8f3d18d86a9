package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// Done is what Init has done.
type Done struct {
	Created []string `json:"created"` // kind and quoted name of each object
	Present []string `json:"present"` // they were there before
}

// DifferentError says that objects are there, but not as they must be.
type DifferentError struct{ Differences []Difference }

func (e *DifferentError) Error() string {
	var b strings.Builder
	b.WriteString("what is there is not as it must be, so nothing was made:")
	for _, d := range e.Differences {
		fmt.Fprintf(&b, "\n  %s: %s; %s", d.Object, d.Text, d.Mend)
	}
	return b.String()
}

// Init makes the tables that are missing, and no others: it can be run again,
// and by several processes at once, which wait for each other. On PostgreSQL and
// SQLite it makes all or none. On MySQL and MariaDB each table is committed when
// it is made: then Done says also with an error what was made, and another call
// goes on from there. It needs one connection.
func Init(ctx context.Context, pool *sql.DB, s templates.Selection) (done Done, err error) {
	list, err := templates.Of(s.Dialect, s.Strategies)
	if err := errors.Join(err, s.Names.Validate()); err != nil {
		return Done{}, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return Done{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	// The connection goes back to the pool without a transaction or a lock.
	end := func(statement string) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, err := conn.ExecContext(ctx, statement)
		return err
	}
	allOrNothing := true
	switch s.Dialect {
	case db.Postgres:
		_, err = conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED")
		if err == nil {
			_, err = conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('exclusive init'))")
		}
	case db.SQLite:
		_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	default:
		allOrNothing = false
		err = namedLock(ctx, conn)
	}
	if allOrNothing {
		defer func() {
			if err == nil {
				_, err = conn.ExecContext(ctx, "COMMIT")
			}
			if err != nil {
				done = Done{}
				_ = end("ROLLBACK") // fails where the transaction has not begun or is over
			}
		}()
	} else if err == nil {
		defer func() { err = errors.Join(err, end("DO RELEASE_LOCK('exclusive init')")) }()
	}
	if err != nil {
		return Done{}, fmt.Errorf("begin: %w", err)
	}
	return create(ctx, conn, list, s)
}

// namedLock waits for a lock of the session, for as long as ctx lets it.
func namedLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var got sql.NullInt64
		// Short waits, since not every server ends a wait with its connection.
		if _, err := one(ctx, conn, "SELECT GET_LOCK('exclusive init', 1)", nil, &got); err != nil || got.Int64 == 1 {
			return err
		}
	}
}

func create(ctx context.Context, conn *sql.Conn, list []templates.Template, s templates.Selection) (done Done, err error) {
	found, err := checkAll(ctx, conn, s)
	if err != nil {
		return Done{}, err
	}
	// Whoever makes tables need not be who works with them.
	found = slices.DeleteFunc(found, func(d Difference) bool { return d.Template != "" && d.Problem == Privilege })
	missing := make(map[string]bool)
	for _, d := range found {
		if d.Problem == Missing {
			missing[d.Template] = true
		}
	}
	if different := slices.DeleteFunc(slices.Clone(found), func(d Difference) bool { return missing[d.Template] && d.Template != "" }); len(different) > 0 {
		return Done{}, &DifferentError{different}
	}
	for _, t := range list {
		object := string(t.Object.Kind) + " " + t.Quoted(s.Names)
		if !missing[t.Name] {
			done.Present = append(done.Present, object)
			continue
		}
		if _, err := conn.ExecContext(ctx, t.Up(s.Names)); err != nil {
			return done, fmt.Errorf("make %s: %w", object, err)
		}
		done.Created = append(done.Created, object)
	}
	return done, nil
}
