package exclusive

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// The pauses of Campaign after a failure of the backend: they double from the
// first to the second, and each is drawn from the half to the whole of that.
const (
	campaignMinPause = 100 * time.Millisecond
	campaignMaxPause = 10 * time.Second
)

// campaignPatience is how long Campaign goes by one call of Acquire. A connection
// whose other end has vanished, as in a failover, gives no answer and no error for a
// quarter of an hour; the next call has another one.
const campaignPatience = 30 * time.Second

// Campaign runs service on one instance at a time: it waits for key, runs
// service under the lease, and waits again when the lease is lost. It retries
// as long as the backend is unavailable. It never ends the process.
//
// Campaign returns when ctx ends, with an error that matches the context's;
// when service returns while it holds the lease, with what service returned;
// and at once for what no retry mends (ErrInvalid, ErrUnsupported, ErrSchema).
// service must end soon after its context does: Campaign waits for it, and
// another instance may already have started.
//
// What service writes goes through Check. A Commit ends the lease and service's
// context: another instance leads at once. Then Campaign returns what service does, but
// waits again if that is the error of its context.
func Campaign(ctx context.Context, l Leaser, key string, service Work) error {
	if service == nil {
		return &Error{Op: "campaign", Key: key, Kind: ErrInvalid, Hint: "service is nil"}
	}
	pause := campaignMinPause
	for {
		actx, cancel := context.WithTimeout(ctx, campaignPatience)
		lease, err := l.Acquire(actx, key)
		waited := actx.Err() != nil
		cancel()
		if err == nil {
			pause = campaignMinPause
			var lost bool
			if lost, err = serve(ctx, lease, service); !lost {
				return err
			}
			continue
		}
		if ctx.Err() != nil || errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrSchema) {
			return err
		}
		if waited && errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		nap := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-nap.C:
		case <-ctx.Done():
			nap.Stop()
			return &Error{Op: "campaign", Key: key, Err: errors.Join(ctx.Err(), err)}
		}
		pause = min(2*pause, campaignMaxPause)
	}
}

// serve runs service under lease, and gives the lease back however it ends.
func serve(ctx context.Context, lease *Lease, service Work) (lost bool, err error) {
	// The caller's context, and the lease's grant: see CurrentGrant.
	sctx, cancel := context.WithCancelCause(WithHolding(ctx, lease.holding))
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	defer stop()
	// Release would go on by itself when ctx has ended. But Campaign's return is
	// often the end of the process, so it waits for an answer.
	release := func() error {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return lease.Release(rctx)
	}
	returned := false
	defer func() {
		if !returned { // it panicked, or called runtime.Goexit
			_ = release()
		}
	}()
	err = service(sctx, lease.Grant())
	returned = true
	ended, cause := ctx.Err(), context.Cause(lease.Context())
	// Beside a refusal below it changes nothing: the lease ends by itself.
	released := release()
	switch {
	case ended != nil:
		return false, &Error{Op: "campaign", Key: lease.Grant().Key, Err: errors.Join(ended, err)}
	case errors.Is(cause, ErrLost):
		return true, nil
	case (errors.Is(err, ErrLost) || errors.Is(err, ErrFenced)) && errors.Is(released, ErrLost):
		// A Check or Commit of service heard of it before the renewal did. (Its
		// error alone may be about another grant.)
		return true, nil
	}
	// Its own Commit has ended the lease and its context, which is no reason to go.
	return cause != nil && errors.Is(err, context.Canceled), err
}
