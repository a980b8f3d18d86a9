package exclusive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
)

func TestValidateKey(t *testing.T) {
	max := strings.Repeat("k", exclusive.MaxKeyBytes)
	wide := strings.Repeat("𝄞", exclusive.MaxKeyBytes/4)
	for _, key := range []string{"k", "report/2026-11-29", " ", "a b", "é", "'", `"`, "`;\\", "%", max, wide} {
		if err := exclusive.ValidateKey("do", key); err != nil {
			t.Errorf("%q is refused: %v", key, err)
		}
	}
	for name, key := range map[string]string{
		"empty": "", "too long": max + "k", "too long in wide runes": wide + "𝄞",
		"NUL": "a\x00b", "not UTF-8": "a\xffb", "surrogate": "\xed\xa0\x80", "huge": strings.Repeat("k", 1<<20),
	} {
		err := exclusive.ValidateKey("do", key)
		if !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the message has %d bytes", name, len(err.Error()))
		}
	}
}

func FuzzValidateKey(f *testing.F) {
	for _, s := range []string{"", "a", "a\x00", "\xff", strings.Repeat("é", 101)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		err := exclusive.ValidateKey("do", key)
		valid := key != "" && len(key) <= 200 && strings.ToValidUTF8(key, "\x00") == key && !strings.Contains(key, "\x00")
		if valid != (err == nil) || err != nil && !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	})
}

type driverError struct{ code string }

func (e *driverError) Error() string { return "driver: " + e.code }

func TestErrorMatchesKindAndCause(t *testing.T) {
	cause := &driverError{"40001"}
	err := fmt.Errorf("nightly: %w", &exclusive.Error{
		Op: "acquire", Key: "k", Kind: exclusive.ErrHeld, Err: cause,
		Holder: &exclusive.Holder{Name: "host/1", Token: 7, Since: time.UnixMicro(0), Expires: time.UnixMicro(1)},
	})
	var e *exclusive.Error
	var d *driverError
	if !errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrLost) || !errors.As(err, &e) || !errors.As(err, &d) || d != cause {
		t.Errorf("%v does not match what it is made of", err)
	}
	for _, part := range []string{"acquire", `"k"`, "host/1", "token 7", "who may fail; wait, or try later", "1970-01-01T00:00:00Z", "driver: 40001"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	ended := &exclusive.Error{Op: "acquire", Key: "k", Err: context.Canceled}
	if !errors.Is(ended, context.Canceled) || errors.Is(ended, exclusive.ErrHeld) {
		t.Errorf("%v", ended)
	}
}

// A cause that is the same outcome for the same key does not say it again. It is still there.
func TestErrorSaysItsOutcomeOnce(t *testing.T) {
	cause := &exclusive.Error{Op: "hold", Key: "k", Kind: exclusive.ErrLost, Hint: "it was taken over", Err: context.Canceled}
	err := &exclusive.Error{Op: "commit", Key: "k", Kind: exclusive.ErrLost, Hint: "the lease is over", Err: cause}
	if want := `exclusive: commit "k": ` + exclusive.ErrLost.Error() + ": the lease is over: it was taken over: context canceled"; err.Error() != want || !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
		t.Errorf("it says %q", err)
	}
	for _, other := range []exclusive.Error{{Op: "hold", Key: "other", Kind: exclusive.ErrLost}, {Op: "hold", Key: "k", Kind: exclusive.ErrFenced}} {
		err.Err = &other
		if !strings.HasSuffix(err.Error(), ": the lease is over: "+other.Error()) {
			t.Errorf("it says %q", err)
		}
	}
}

type promising exclusive.Promises

func (p promising) Promises() exclusive.Promises                     { return exclusive.Promises(p) }
func (p promising) Do(context.Context, string, exclusive.Work) error { return nil }

func TestRequireAndChoose(t *testing.T) {
	lease := promising(exclusive.PromisesOf("fencing"))
	if err := exclusive.Require(lease, exclusive.Promises{TimeBound: true, RefusesStale: true}); err != nil {
		t.Error(err)
	}
	err := exclusive.Require(lease, exclusive.Promises{OneAtATime: true})
	if !errors.Is(err, exclusive.ErrUnsupported) || !strings.Contains(err.Error(), "OneAtATime") || !strings.Contains(err.Error(), "rowlock") {
		t.Errorf("a lease is accepted where a holder must never overlap, or the mend is not named: %v", err)
	}
	if err := exclusive.Require(promising(exclusive.PromisesOf("rowlock")), exclusive.Promises{TimeBound: true}); err != nil {
		t.Errorf("OneAtATime implies TimeBound: %v", err)
	}
	if err := exclusive.Require(promising{}, exclusive.Promises{}); err != nil {
		t.Error(err)
	}
	names := func(need exclusive.Promises) (list []string) {
		for _, s := range exclusive.Choose(need) {
			list = append(list, s.Name)
		}
		return list
	}
	if got := names(exclusive.Promises{}); len(got) != len(exclusive.Strategies()) || got[0] != "casupdate" {
		t.Errorf("all suffice for nothing, weakest first: %v", got)
	}
	if got := names(exclusive.Promises{OncePerKey: true, RefusesStale: true}); !slices.Equal(got, []string{"uniquetask"}) {
		t.Errorf("once, and stale ones refused: %v", got)
	}
	if got := (exclusive.Promises{}).String(); got != "nothing" {
		t.Errorf("the zero Promises promise %q", got)
	}
}

func TestSlogLevels(t *testing.T) {
	for name, tt := range map[string]struct {
		event exclusive.Event
		level string
	}{
		"success":  {exclusive.Event{Op: exclusive.OpDo, Key: "k"}, "DEBUG"},
		"held":     {exclusive.Event{Op: exclusive.OpAcquire, Err: &exclusive.Error{Kind: exclusive.ErrHeld}}, "DEBUG"},
		"done":     {exclusive.Event{Op: exclusive.OpDo, Err: exclusive.ErrDone}, "DEBUG"},
		"failure":  {exclusive.Event{Op: exclusive.OpCommit, Err: exclusive.ErrUnavailable}, "INFO"},
		"loss":     {exclusive.Event{Op: exclusive.OpLose, Grant: exclusive.Grant{ID: "g", Token: 3}, Err: exclusive.ErrLost}, "WARN"},
		"renewing": {exclusive.Event{Op: exclusive.OpRenew, Count: 5}, "DEBUG"},
	} {
		var out bytes.Buffer
		o := exclusive.Slog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		o.End(o.Start(t.Context(), tt.event), tt.event)
		if !strings.Contains(out.String(), "level="+tt.level) || !strings.Contains(out.String(), "exclusive "+string(tt.event.Op)) {
			t.Errorf("%s: %s", name, out.String())
		}
	}
}
