package bench

import (
	"context"
	"strconv"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// hand is a mechanism in plain SQL, as one writes it without this module: it
// claims before the transaction of the write, or locks in it. What the claim
// returns goes to the finish.
type hand struct {
	claim  func(ctx context.Context, key string) (token int64, err error)
	lock   func(ctx context.Context, q execer, key string) error
	finish func(ctx context.Context, q execer, key string, token int64) error
}

// handState is a conditional UPDATE of a state.
func (s *sqlStage) handState() hand {
	job := s.table("job")
	return hand{
		claim: func(ctx context.Context, key string) (int64, error) {
			id, err := strconv.ParseInt(key, 10, 64)
			if err != nil {
				return 0, err
			}
			return id, s.exec(ctx, s.SQL, "UPDATE "+job+" SET state = 'BUSY' WHERE id = ? AND state = 'NEW'", id)
		},
		finish: func(ctx context.Context, q execer, _ string, id int64) error {
			return s.exec(ctx, q, "UPDATE "+job+" SET state = 'DONE' WHERE id = ? AND state = 'BUSY'", id)
		},
	}
}

// handLock is SELECT … FOR UPDATE.
func (s *sqlStage) handLock() hand {
	return hand{lock: func(ctx context.Context, q execer, key string) error {
		if s.Dialect == db.SQLite { // it has no row locks: a write locks the database
			return s.exec(ctx, q, "UPDATE "+s.table("hand_lock")+" SET name = name WHERE name = ?", key)
		}
		_, err := q.ExecContext(ctx, s.Dialect.Bind("SELECT name FROM "+s.table("hand_lock")+" WHERE name = ? FOR UPDATE"), key)
		return err
	}}
}

// handRun is an INSERT of a unique run.
func (s *sqlStage) handRun() hand {
	run := s.table("hand_run")
	return hand{
		claim: func(ctx context.Context, key string) (int64, error) {
			return 0, s.exec(ctx, s.SQL, "INSERT INTO "+run+" (run, state) VALUES (?, 'BUSY')", key)
		},
		finish: func(ctx context.Context, q execer, key string, _ int64) error {
			return s.exec(ctx, q, "UPDATE "+run+" SET state = 'DONE' WHERE run = ? AND state = 'BUSY'", key)
		},
	}
}

// handLease is a row with an owner, a token and an expiry.
func (s *sqlStage) handLease() hand {
	lease, now := s.table("hand_lease"), strategy.Now(s.Dialect)
	take := func(token string) string {
		return "UPDATE " + lease + " SET owner = 'me', token = " + token + ", expires_at = " + now + " + 30000000 WHERE name = ? AND expires_at < " + now
	}
	return hand{
		claim: func(ctx context.Context, key string) (token int64, err error) {
			if s.Dialect == db.Postgres || s.Dialect == db.SQLite {
				err = s.SQL.QueryRowContext(ctx, s.Dialect.Bind(take("token + 1")+" RETURNING token"), key).Scan(&token)
				return token, err
			}
			res, err := s.SQL.ExecContext(ctx, take("LAST_INSERT_ID(token + 1)"), key)
			if err != nil {
				return 0, err
			}
			return res.LastInsertId()
		},
		finish: func(ctx context.Context, q execer, key string, token int64) error {
			return s.exec(ctx, q, "UPDATE "+lease+" SET expires_at = 0 WHERE name = ? AND token = ? AND expires_at > "+now, key, token)
		},
	}
}
