package comparison

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// childEnv tells a test binary to be A, and what it needs for that.
const childEnv = "EXCLUSIVE_TEST_COMPARISON_CHILD"

// order is what A is to do.
type order struct {
	Ticket strategies.Ticket
	Key    string
	Past   bool // write past the strategy
}

// childLease is longer than ttl: A must come to its point at the first try.
const childLease = 5 * ttl

// ready is what A prints when it has written and has not committed.
const ready = "A has written"

// child does what the order says until it is killed.
func child[Tx any](t *testing.T, target *matrix.Target[Tx], o order) {
	place := strategies.Enter(t, target, o.Ticket)
	r := &rig[Tx]{T: t, ctx: t.Context(), target: target, other: target, place: place}
	x := r.open(target, exclusivetest.Config{TTL: childLease, Holder: "A"})
	err := x.Do(r.ctx, o.Key, func(_ context.Context, g exclusive.Grant) error {
		if o.Past {
			r.past(o.Key, "A")
			return wait()
		}
		return x.Commit(r.ctx, g, func(ctx context.Context, tx Tx) error {
			if err := place.Write(ctx, tx, o.Key, "A"); err != nil {
				return err
			}
			return wait()
		})
	})
	t.Fatalf("A was not killed: %v", err)
}

func wait() error {
	if _, err := os.Stdout.WriteString(ready + "\n"); err != nil {
		return err
	}
	select {}
}

// kill has another process do what the order says, and kills it in the middle.
func (r *rig[Tx]) kill(o order) {
	r.Helper()
	text, err := json.Marshal(o)
	r.must("write the order", err)
	cmd := exec.CommandContext(r.ctx, os.Args[0], "-test.run=^TestChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	out, err := cmd.StdoutPipe()
	r.must("start A", err)
	cmd.Stderr = os.Stderr
	r.must("start A", cmd.Start())
	lines := bufio.NewScanner(out)
	var said strings.Builder
	for lines.Scan() && lines.Text() != ready {
		said.WriteString(lines.Text() + "\n")
	}
	if lines.Text() != ready {
		r.Fatalf("A has ended: %v\n%s", cmd.Wait(), said.String())
	}
	r.must("kill A", cmd.Process.Kill())
	_ = cmd.Wait() // it says that it was killed
}

func killed[Tx any](r *rig[Tx]) result {
	play := func(past bool) (key, saw string) {
		key = r.place.MustKey(r.T)
		r.kill(order{Ticket: r.place.Ticket(), Key: key, Past: past})
		b := r.healthy(0)
		d := patience
		if r.promises.OneAtATime && r.place.Reopen != nil {
			d = well(childLease) // no time frees the key
		}
		got := r.try(b, key, "B", d)
		saw = "gets the key"
		if got != nil {
			saw = r.told(got)
		}
		if errors.Is(got, exclusive.ErrHeld) {
			r.must("give the key free", r.place.TakeAway(r.ctx, key))
			r.must("B", r.report(b, key, "B"))
			saw = "`ErrHeld`, until an operator gives it free"
		}
		return key, saw
	}
	key, saw := play(false)
	seen := r.says(key, "killed", saw)
	held := r.kept("InTx", key, outcome{"B", 1})
	if r.promises.OneAtATime && r.place.Reopen == nil && !r.target.Networked() {
		return result{seen, held, "—"} // rowlock on SQLite: nobody writes past the transaction
	}
	key, _ = play(true)
	return result{seen, held, r.twice(key, "B")}
}
