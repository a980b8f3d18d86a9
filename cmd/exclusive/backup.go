package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/exclusive-go/exclusive/internal/db"
)

// backUpIssuer copies the leases and what counts their tokens.
func (s *stage) backUpIssuer(ctx context.Context) (func(context.Context) error, error) {
	switch s.dialect {
	case db.Postgres, db.MariaDB:
		return s.backUpSequence(ctx)
	default:
		return s.backUp(ctx, s.issuer()+"lease", s.issuer()+"token")
	}
}

// backUpDestination copies the reports, the marks and the operations.
func (s *stage) backUpDestination(ctx context.Context) (func(context.Context) error, error) {
	return s.backUp(ctx, s.report(), s.destination()+"mark", s.destination()+"op")
}

// backUp copies tables beside themselves. The function that it returns replaces
// their rows by the copies.
func (s *stage) backUp(ctx context.Context, tables ...string) (func(context.Context) error, error) {
	s.copies++
	suffix := "_copy" + strconv.Itoa(s.copies)
	for _, table := range tables {
		if err := s.create(ctx, table+suffix, "AS SELECT * FROM "+table); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		for _, table := range tables {
			for _, statement := range []string{"DELETE FROM " + table, "INSERT INTO " + table + " SELECT * FROM " + table + suffix} {
				if err := s.exec(ctx, s.pool, statement); err != nil {
					return err
				}
			}
		}
		return nil
	}, nil
}

// backUpSequence is backUpIssuer where tokens come from a sequence.
func (s *stage) backUpSequence(ctx context.Context) (func(context.Context) error, error) {
	restoreLeases, err := s.backUp(ctx, s.issuer()+"lease")
	if err != nil {
		return nil, err
	}
	sequence := s.issuer() + "token"
	read, restart := "SELECT last_value + CASE WHEN is_called THEN 1 ELSE 0 END FROM %s", "ALTER SEQUENCE %s RESTART WITH %s"
	if s.dialect == db.MariaDB {
		read = "SELECT next_not_cached_value FROM %s"
	}
	var next string
	if err := s.pool.QueryRowContext(ctx, fmt.Sprintf(read, sequence)).Scan(&next); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := restoreLeases(ctx); err != nil {
			return err
		}
		return s.exec(ctx, s.pool, fmt.Sprintf(restart, sequence, next))
	}, nil
}
