package strategy

import (
	"context"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

const (
	// MaxToken is the largest token. MySQL's answer to a claim has 63 bits for
	// the token and the attempt. At a million grants per second it lasts 4
	// years; at a thousand, 4,000.
	MaxToken = 1<<47 - 1

	// Pack is what a token is multiplied by to make room for the attempt.
	Pack = 1 << 16

	// MaxWaited is how long, in microseconds, a claim may have waited for a
	// row's lock and still take the key. A statement whose caller gave up must
	// not take it later.
	MaxWaited = "1000000"

	// MySQLWaited is how long the statement has run: SYSDATE is the time of
	// evaluation, NOW that of the statement's beginning. See MeasuresWaits.
	MySQLWaited = `TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))`
)

// ClaimWait is how long a claim waits on MySQL for a row that a transaction has
// locked, and elsewhere for a lock that need not be that of its row. It is longer
// than MaxWaited.
const ClaimWait = 1500 * time.Millisecond

// Impatient runs a claim on MySQL, which cannot be told not to wait for a
// locked row, and gives it up in time. That is no error. The connection is not
// held any longer, whatever the server's own time-out is. A statement that was
// given up does not take a row over any more, but it may yet insert a new one:
// abandon it.
func Impatient(ctx context.Context, claim func(context.Context) error) (gaveUp bool, err error) {
	cctx, cancel := context.WithTimeout(ctx, ClaimWait)
	defer cancel()
	err = claim(cctx)
	if err != nil && cctx.Err() != nil && ctx.Err() == nil {
		return true, nil
	}
	return false, err
}

// MeasuresWaits fails on a MySQL or MariaDB where MySQLWaited is always 0.
func MeasuresWaits(ctx context.Context, r db.Runner) error {
	var differ bool // a clock that is set back meanwhile, or is off, differs too
	_, err := One(ctx, r, `SELECT SLEEP(0.001) >= 0 AND SYSDATE(6) <> NOW(6)`, nil, func(scan db.Scan) error { return scan(&differ) })
	if err == nil && !differ {
		err = &exclusive.Error{Op: "check the server", Kind: exclusive.ErrUnsupported,
			Hint: "SYSDATE() does not tell how long a statement has run, so a claim whose caller has gone could take the key late: start the server without --sysdate-is-now"}
	}
	return err
}

// The limits of Settle.
const (
	settleWait  = 100 * time.Millisecond
	settlePause = 2 * time.Millisecond
)

// Settle runs claim again, for a moment, while the key is refused although nobody
// has it: its row is locked by a statement that will change nothing, such as a
// renewal that was sent before the release and arrived after it, or by a rival's
// claim, and then the next one tells who that is. claim runs at least twice before
// it is left unsettled.
func Settle(ctx context.Context, claim func(ctx context.Context) (settled bool, err error)) error {
	end := time.Now().Add(settleWait)
	for pause := settlePause; ; pause *= 2 {
		settled, err := claim(ctx)
		if settled || err != nil || pause > settlePause && time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ValidGrant checks a grant that came from a caller.
func ValidGrant(op string, g exclusive.Grant) error {
	if err := exclusive.ValidateKey(op, g.Key); err != nil {
		return err
	}
	hint := ""
	switch {
	case g.Token <= 0:
		hint = "the grant has no token; use a strategy that issues tokens"
	case g.Token > MaxToken:
		hint = "the grant's token is larger than any that is issued"
	case g.ID == "" || len(g.ID) > 64:
		hint = "the grant's id must have 1 to 64 bytes"
	default:
		return nil
	}
	return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrInvalid, Hint: hint}
}

// ValidSeen checks the key and the grant's id that an operator was shown.
func ValidSeen(op, key, id string) error {
	if err := exclusive.ValidateKey(op, key); err != nil {
		return err
	}
	if id == "" || len(id) > 64 {
		return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrInvalid, Hint: "no grant was seen: its id must have 1 to 64 bytes"}
	}
	return nil
}

// NotReleased says why the grant that an operator saw was not released: now has the
// key by now, nil for nobody.
func NotReleased(key string, now *exclusive.Holder) error {
	if now != nil {
		return &exclusive.Error{Op: "release", Key: key, Kind: exclusive.ErrHeld, Holder: now, Hint: "it is another grant than the one that was seen, and was left alone"}
	}
	return &exclusive.Error{Op: "release", Key: key, Kind: exclusive.ErrLost, Hint: "the grant that was seen had ended before; nobody has the key"}
}

// ValidAdvance checks what every Advance was called with.
func ValidAdvance(key string, atLeast int64) error {
	if err := exclusive.ValidateKey("advance", key); err != nil {
		return err
	}
	if atLeast <= 0 || atLeast >= MaxToken {
		return &exclusive.Error{Op: "advance", Key: key, Kind: exclusive.ErrInvalid,
			Hint: fmt.Sprintf("the token must be from 1 to %d", int64(MaxToken)-1)}
	}
	return nil
}

// ValidCommit checks what a Commit was called with.
func ValidCommit[Tx any](g exclusive.Grant, apply func(context.Context, Tx) error) error {
	if err := ValidGrant("commit", g); err != nil {
		return err
	}
	if apply == nil {
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "apply is nil"}
	}
	return nil
}
