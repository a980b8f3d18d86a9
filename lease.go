package exclusive

import "context"

// Lease is a grant bounded by time. It is renewed in the background until it
// is released, lost, or has reached the configured maximum. All methods are
// safe for concurrent use.
//
// Keep the Lease reachable while you rely on it: a Lease that the garbage
// collector frees without Release is no longer renewed.
type Lease struct {
	holding Holding
}

// Holding is what a backend supplies for a [Lease]. Only authors of backends
// need it; see the method of the same name on [Lease] for what each must do.
type Holding interface {
	Grant() Grant
	Context() context.Context
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

type holdingKey struct{}

// WithHolding makes the context of a lease, in which [CurrentGrant] finds it. It
// is for authors of backends.
func WithHolding(ctx context.Context, h Holding) context.Context {
	return context.WithValue(ctx, holdingKey{}, h)
}

// CurrentGrant returns the grant that work's context, or a lease's, stands for
// as it is now: Expires moves with every renewal, so this is how long work may
// still take if no further renewal gets through. (It stays zero if time does not
// bound the grant.) It reports false if ctx stems from no lease. Where one is
// nested in another it is the inner one.
func CurrentGrant(ctx context.Context) (Grant, bool) {
	h, ok := ctx.Value(holdingKey{}).(Holding)
	if !ok {
		return Grant{}, false
	}
	return h.Grant(), true
}

// NewLease makes a lease of a backend's own. It is for authors of backends.
func NewLease(h Holding) *Lease { return &Lease{holding: h} }

// Grant returns the grant as it stands: Expires moves with every renewal.
func (l *Lease) Grant() Grant { return l.holding.Grant() }

// Context ends when the lease does, before anybody else can get the key. (While
// a Commit's transaction runs it holds the key by its lock, and the context
// stays open for as long as that lasts.)
// context.Cause matches [ErrLost] if the lease was lost, and is
// context.Canceled after Release. It is not derived from the context given to
// Acquire.
func (l *Lease) Context() context.Context { return l.holding.Context() }

// Renew extends the lease now by its full length. ErrLost means that it is
// over. Other errors leave it as it was.
func (l *Lease) Renew(ctx context.Context) error { return l.holding.Renew(ctx) }

// Release gives the key back. ErrLost says that the lease had ended before: somebody
// else may have worked on the key meanwhile. It may also be told when Release had to be
// sent again and somebody else has the key by then, in the background or on redisbackend:
// whether it was the first one that freed the key is not known. A second Release is ErrLost too; one
// after a Commit has nothing to do, and is nil. If Release fails otherwise, the key
// is free at the latest when the lease runs out.
//
// A ctx that has ended does not keep the key taken: with
//
//	defer lease.Release(ctx)
//
// in a request that is cancelled, or whose ctx ends before there is an answer,
// Release returns at once, with an error that matches the context's, and goes on in
// the background until the backend has answered or the lease has run out. The Close
// of the strategy waits for that, for a few seconds. Another Release waits for it
// too, as long as its own ctx lasts, and tells what came of it. The lease's
// context has ended in any case, and it is not renewed any more.
func (l *Lease) Release(ctx context.Context) error { return l.holding.Release(ctx) }
