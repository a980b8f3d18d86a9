package fencing

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// ops applies operations once. Leases and Guard share it.
type ops[Tx any] struct{ server *server[Tx] }

// savepoints numbers the savepoints of this process: a nested Once must not
// hide its outer one's.
var savepoints atomic.Int64

// Once runs apply once for each operation id, ever, and stores its result in
// the caller's transaction. A repeated call returns the stored result without
// running apply; with another payload it is ErrMismatch. Operation ids follow
// the rules of keys; a good one comes with the request.
//
// The caller that comes second waits for the transaction of the first. If
// apply fails or panics, nothing of it stays: its writes are rolled back to
// where they began, and the id can be used again. After an error that matches
// ErrConflict roll tx back and retry it as a whole.
//
// Once is exactly as durable as tx: it counts when tx is committed. apply must
// write through tx and nothing else, and return every error of its statements:
// MySQL and MariaDB roll the whole transaction back after a deadlock.
func (o ops[Tx]) Once(ctx context.Context, tx Tx, opID string, payload []byte, apply func(ctx context.Context) (result []byte, err error)) (result []byte, err error) {
	if err := exclusive.ValidateKey("once", opID); err != nil {
		return nil, err
	}
	if apply == nil {
		return nil, &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrInvalid, Hint: "apply is nil"}
	}
	d, r, err := o.server.Within(ctx, "once", opID, tx)
	if err != nil {
		return nil, err
	}
	// The savepoint lets a failed apply be undone in the caller's transaction.
	savepoint := fmt.Sprintf("exclusive_once_%d", savepoints.Add(1))
	if _, err := r.Exec(ctx, "SAVEPOINT "+savepoint); err != nil {
		return nil, o.server.Fail(ctx, "once", opID, err)
	}
	hash := sha256.Sum256(payload)
	inserted, err := d.beginOp(ctx, r, opID, hash[:])
	if err != nil {
		return nil, o.server.Fail(ctx, "once", opID, err)
	}
	if !inserted {
		result, err = o.replay(ctx, d, r, opID, hash[:])
		rerr := o.release(ctx, r, opID, savepoint)
		return result, cmp.Or(err, rerr)
	}
	applied := false
	defer func() {
		if !applied {
			err = errors.Join(err, o.undo(ctx, r, opID, savepoint))
		}
	}()
	if result, err = apply(ctx); err != nil {
		return nil, o.server.ApplyErr("once", opID, err)
	}
	if result == nil {
		result = []byte{} // NULL would mean that it is being applied
	}
	if err := d.endOp(ctx, r, opID, result); err != nil {
		return nil, o.server.Fail(ctx, "once", opID, err)
	}
	applied = true
	return result, o.release(ctx, r, opID, savepoint)
}

// release forgets the savepoint: servers keep those of a transaction, and what
// they need to go back to them, until its end.
func (o ops[Tx]) release(ctx context.Context, r db.Runner, opID, savepoint string) error {
	if _, err := r.Exec(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
		if ctx.Err() != nil {
			return db.CtxError(ctx, "once", opID, err)
		}
		return doomed(opID, err)
	}
	return nil
}

// doomed says that the transaction is beyond use.
func doomed(opID string, err error) error {
	return &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrConflict, Hint: "roll the transaction back", Err: err}
}

// replay returns the result of an operation that was applied before.
func (o ops[Tx]) replay(ctx context.Context, d dialect, r db.Runner, opID string, payload []byte) ([]byte, error) {
	op, found, err := d.readOp(ctx, r, opID)
	e := &exclusive.Error{Op: "once", Key: opID}
	switch {
	case err != nil:
		return nil, o.server.Fail(ctx, "once", opID, err)
	case !found:
		e.Kind, e.Hint = exclusive.ErrConflict, "the operation was removed while it was looked at"
	case !bytes.Equal(op.payload, payload):
		e.Kind = exclusive.ErrMismatch
	case op.applied == 0:
		e.Kind, e.Hint = exclusive.ErrInvalid, "this transaction is applying the operation; apply must not call Once with its own id"
	default:
		return op.result, nil
	}
	return nil, e
}

// undo rolls back to the savepoint, also when ctx has ended. If that fails the
// transaction is beyond use.
func (o ops[Tx]) undo(ctx context.Context, r db.Runner, opID, savepoint string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.RollbackWait)
	defer cancel()
	if _, err := r.Exec(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		return doomed(opID, err)
	}
	return o.release(ctx, r, opID, savepoint)
}
