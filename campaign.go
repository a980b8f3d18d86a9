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

// Campaign runs service on one instance at a time: it waits for key, runs
// service under the lease, and waits again when the lease is lost. It retries
// as long as the backend is unavailable. It never ends the process.
//
// Campaign returns when ctx ends, with an error that matches the context's;
// when service returns while it holds the lease, with what service returned;
// and at once for what no retry mends (ErrInvalid, ErrUnsupported, ErrSchema).
// service must end soon after its context does: Campaign waits for it, and
// another instance may already have started.
func Campaign(ctx context.Context, l Leaser, key string, service Work) error {
	if service == nil {
		return &Error{Op: "campaign", Key: key, Kind: ErrInvalid, Hint: "service is nil"}
	}
	pause := campaignMinPause
	for {
		lease, err := l.Acquire(ctx, key)
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
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// What it says changes nothing: the lease ends by itself.
		_ = lease.Release(rctx)
	}()
	err = service(sctx, lease.Grant())
	switch {
	case ctx.Err() != nil:
		return false, &Error{Op: "campaign", Key: lease.Grant().Key, Err: errors.Join(ctx.Err(), err)}
	case errors.Is(context.Cause(lease.Context()), ErrLost):
		return true, nil
	}
	return false, err
}
