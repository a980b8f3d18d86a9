package db

import "context"

// Pinner is implemented by adapters of servers that take COMMIT for an answer
// after they have rolled a transaction back by themselves: on MySQL and
// MariaDB a deadlock ends the whole transaction, and what an application that
// overlooks the error does next runs without one.
type Pinner[Tx any] interface {
	// Pin marks the transaction that has just begun.
	Pin(ctx context.Context, tx Tx) error
	// Unpin fails, see EndedEarly, if the transaction is not the one that was
	// pinned.
	Unpin(ctx context.Context, tx Tx) error
}

// Opener is implemented by adapters that can send BEGIN and the first statement
// of a transaction together, which saves a round trip.
type Opener[Tx any] interface {
	// Open begins a transaction with the statements of first, which has at
	// least one. If first fails the transaction is rolled back.
	Open(ctx context.Context, first func(ctx context.Context, r Runner) error) (Tx, error)
}

// Open begins a transaction with the statements of first. After an error, a
// panic or runtime.Goexit there is no transaction.
func Open[Tx any](ctx context.Context, d DB[Tx], first func(ctx context.Context, r Runner) error) (Tx, error) {
	if opener, ok := d.(Opener[Tx]); ok {
		return opener.Open(ctx, first)
	}
	var none Tx
	tx, err := d.Begin(ctx)
	if err != nil {
		return none, err
	}
	open := false
	defer func() {
		if !open {
			_ = d.Rollback(tx)
		}
	}()
	r, err := d.Within(tx)
	if err == nil {
		err = first(ctx, r)
	}
	if err != nil {
		return none, err
	}
	open = true
	return tx, nil
}

// InTx runs fn in a transaction of its own and commits it. If fn fails,
// panics or calls runtime.Goexit the transaction is rolled back; the panic goes
// on with its value and stack. A rollback that fails as well does not hide why
// it was needed.
//
// After an error the transaction did not happen, unless the error matches
// ErrCommitUnknown: then nobody can tell.
func InTx[Tx any](ctx context.Context, d DB[Tx], fn func(ctx context.Context, tx Tx, r Runner) error) error {
	tx, err := d.Begin(ctx)
	return inTx(ctx, d, tx, err, fn)
}

// InTxAfter is InTx in a transaction that begins with the statements of first,
// see Open.
func InTxAfter[Tx any](ctx context.Context, d DB[Tx], first func(ctx context.Context, r Runner) error, fn func(ctx context.Context, tx Tx) error) error {
	if _, pins := d.(Pinner[Tx]); pins { // before anything else is done
		return InTx(ctx, d, func(ctx context.Context, tx Tx, r Runner) error {
			if err := first(ctx, r); err != nil {
				return err
			}
			return fn(ctx, tx)
		})
	}
	tx, err := Open(ctx, d, first)
	return inTx(ctx, d, tx, err, func(ctx context.Context, tx Tx, _ Runner) error { return fn(ctx, tx) })
}

// inTx runs fn in tx, unless that could not be begun because of err.
func inTx[Tx any](ctx context.Context, d DB[Tx], tx Tx, err error, fn func(ctx context.Context, tx Tx, r Runner) error) error {
	if err != nil {
		return err
	}
	// Not recover: it would lose the stack of a panic, and it does not see
	// Goexit at all.
	committing := false
	defer func() {
		if !committing {
			_ = d.Rollback(tx)
		}
	}()
	r, err := d.Within(tx)
	if err != nil {
		return err
	}
	pinner, pins := d.(Pinner[Tx])
	if pins {
		if err := pinner.Pin(ctx, tx); err != nil {
			return err
		}
	}
	fctx, over := Take(ctx, d, false)
	defer over()
	if err := fn(fctx, tx, r); err != nil {
		return err
	}
	if pins {
		if err := pinner.Unpin(ctx, tx); err != nil {
			return err
		}
	}
	committing = true
	return d.Commit(ctx, tx)
}
