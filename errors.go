package exclusive

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The outcomes. Each answers: did work run, may effects exist, what next?
// Tell them apart with errors.Is; errors.As with *[Error] has the details. An
// error that stems from the caller's context matches context.Canceled or
// context.DeadlineExceeded instead, never ErrHeld.
var (
	// ErrHeld: somebody else holds the key. Work did not run, no effects.
	// That the work gets done is not said: the holder may fail. Skip only if
	// something tries again later; else wait (Config.Wait) for longer than the
	// holder's lease, or try later.
	ErrHeld = errors.New("the key is held by somebody else, who may fail; wait, or try later")

	// ErrDone: the work was done before. Work did not run now; its effects
	// exist. Stop. Error.Result has the stored result where one is kept.
	ErrDone = errors.New("already done; nothing is left to do")

	// ErrNoRow: the row of the application's table does not exist. Work did
	// not run, no effects. Insert the row, or mend the key.
	ErrNoRow = errors.New("the row does not exist; insert it, or mend the key")

	// ErrConflict: the transaction lost against another one (deadlock,
	// serialization failure, lock time-out, or a commit that did not happen).
	// Work may have run; nothing it wrote in the transaction stays. Retry the
	// whole call.
	ErrConflict = errors.New("the transaction conflicted and was not committed; retry the whole call")

	// ErrLost: the grant ended while work ran, and its context was cancelled; or
	// it was used after its Do had returned, or its lease was released; or Do gave
	// up on a Commit that work had left behind. Effects outside guarded
	// transactions may exist. Stop this attempt. Another holder may exist, and
	// need not: what must be done takes another Do, which says ErrDone if it was
	// done meanwhile and is to be done once, or a process that starts again.
	ErrLost = errors.New("the grant was lost, and another holder may exist; stop this attempt, and call Do again if the work must be done")

	// ErrFenced: the destination has seen a newer holder. Work ran; this write
	// was refused: of a Check or Commit, or of "done" at the end of a Do without
	// one. Stop this attempt. The newer holder may fail: what must be done takes
	// another Do, as with ErrLost.
	ErrFenced = errors.New("refused: a newer holder exists; stop this attempt, and call Do again if the work must be done")

	// ErrOutcomeUnknown: the commit got no answer and asking again did not
	// tell. Work ran; effects may exist. Ask before you repeat: once-only
	// strategies can tell, and a repeated operation id replays its result.
	ErrOutcomeUnknown = errors.New("the commit got no answer; its effects may exist, ask before you repeat it")

	// ErrMismatch: the operation id was used before with another payload.
	// Nothing ran, no effects. Use a new operation id.
	ErrMismatch = errors.New("this operation id was used with another payload; use a new one")

	// ErrUnavailable: the backend is down, read-only, too busy, or does not
	// permit it. Work did not run; from a Check or Commit inside work: nothing
	// was written in that transaction. Mend the backend, try later.
	ErrUnavailable = errors.New("the backend is unavailable; nothing ran")

	// ErrSchema: a table or sequence is missing or not as it must be. Work did
	// not run, no effects. Error.Hint names the migration to apply; for a table
	// of the application's own, what must agree with it.
	ErrSchema = errors.New("the schema is not as it must be; mend it before you retry")

	// ErrInvalid: the call or the configuration is wrong. Work did not run.
	// Mend the call.
	ErrInvalid = errors.New("invalid call")

	// ErrUnsupported: the strategy cannot do that. Work did not run. Choose
	// another strategy or configuration.
	ErrUnsupported = errors.New("not supported by this strategy")

	// ErrFinished: work is done and its effects exist, and something failed
	// after that: work returned an error after its Commit, or the key could not
	// be given back. Do not repeat the work.
	ErrFinished = errors.New("the work is done, and something failed after it; do not repeat it")
)

// Error is the type of all errors that the strategies make themselves.
type Error struct {
	Op     string  // what was tried: "acquire", "renew", "commit", …
	Key    string  // the key, as far as one was given
	Kind   error   // one of the sentinels above, or a strategy's own (uniquetask.ErrFailed); nil if none fits: see Err
	Holder *Holder // who is in the way, where known (ErrHeld, ErrFenced)
	Result []byte  // the stored result, where one is kept (ErrDone)
	Hint   string  // what exactly is wrong, or the next step
	Err    error   // the driver's or the context's error
}

// Holder is who holds a key, as far as the backend tells. Times are on the
// backend's clock.
type Holder struct {
	ID      string    // the grant's id
	Name    string    // the configured name of the holder
	Token   int64     // 0 = none
	Since   time.Time // zero = not known
	Expires time.Time // zero = not known, or not bounded by time
}

// Status is a key as operators see it.
type Status struct {
	Key string
	// Held: somebody has the key. Otherwise Last is the one who had it last.
	Held bool
	Last Holder
	// Attempt is that of the last grant; 0: it ended in good order.
	Attempt int
}

// Error says what was tried, what came out, and what to do next.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("exclusive: ")
	b.WriteString(e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", shorten(e.Key))
	}
	if e.Kind != nil {
		b.WriteString(": ")
		b.WriteString(e.Kind.Error())
	}
	e.details(&b)
	return b.String()
}

// details writes what comes after the outcome. A cause that is the same outcome for the
// same key adds its own details only.
func (e *Error) details(b *strings.Builder) {
	if h := e.Holder; h != nil {
		fmt.Fprintf(b, " (%s)", h)
	}
	if e.Hint != "" {
		b.WriteString(": ")
		b.WriteString(e.Hint)
	}
	cause, ours := e.Err.(*Error)
	switch {
	case ours && e.Kind != nil && cause.Kind == e.Kind && cause.Key == e.Key:
		cause.details(b)
	case e.Err != nil:
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
}

// shorten keeps messages readable when a refused key is very long.
func shorten(key string) string {
	if len(key) <= MaxKeyBytes {
		return key
	}
	return key[:MaxKeyBytes] + "…"
}

// Unwrap makes errors.Is and errors.As find both the sentinel and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// String names the holder for people.
func (h *Holder) String() string {
	var parts []string
	if h.Name != "" {
		parts = append(parts, "holder "+h.Name)
	}
	if h.Token != 0 {
		parts = append(parts, fmt.Sprintf("token %d", h.Token))
	}
	if !h.Since.IsZero() {
		parts = append(parts, "since "+h.Since.UTC().Format(time.RFC3339Nano))
	}
	if !h.Expires.IsZero() {
		parts = append(parts, "until "+h.Expires.UTC().Format(time.RFC3339Nano))
	}
	if len(parts) == 0 {
		return "holder unknown"
	}
	return strings.Join(parts, ", ")
}
