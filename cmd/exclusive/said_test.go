package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// What the library says becomes what an operator can use, and is the same error.
func TestSaid(t *testing.T) {
	t.Parallel()
	failed := &exclusive.Error{Op: "claim", Key: "a b", Kind: uniquetask.ErrFailed, Hint: "attempt 1 of 1 failed; mend the cause and Forget the run"}
	line := (&target.Target{Flags: []string{"--prefix", "a_"}}).Line
	schema := &exclusive.Error{Op: "list keys", Kind: exclusive.ErrSchema, Hint: "apply the fencing files"}
	for _, c := range []struct {
		err             error
		name, run, want string
	}{
		{&exclusive.Error{Op: "claim", Key: "r"}, "n", "r", `claim "n/r"`},
		{&exclusive.Error{Op: "claim", Key: "r/s"}, "n", "r/s", `claim "n/r%2Fs"`},
		{&exclusive.Error{Op: "acquire", Key: "n"}, "n", "", `acquire "n"`},
		{&exclusive.Error{Op: "claim", Key: "other"}, "n", "r", `claim "other"`},
		{fmt.Errorf("no answer: %w", &exclusive.Error{Op: "claim", Key: "r"}), "n", "r", `no answer: claim "n/r"`},
		{errors.Join(&exclusive.Error{Op: "do", Key: "r"}, &exclusive.Error{Op: "list"}), "n", "r", "do \"n/r\"\nlist"},
		{&exclusive.Error{Op: "do", Key: "r", Err: &exclusive.Error{Op: "claim", Key: "r"}}, "n", "r", `do "n/r": claim "n/r"`},
		{failed, "it's", "a b", `claim "it's/a b": ` + uniquetask.ErrFailed.Error() + `: attempt 1 of 1 failed; mend the cause, then exclusive forget --prefix a_ 'it'\''s' 'a b'`},
		{schema, "", "", "list keys: " + exclusive.ErrSchema.Error() + ": exclusive init --prefix a_ makes the tables, or says what differs"},
		{&exclusive.Error{Op: "hold", Key: "n", Kind: exclusive.ErrLost}, "n", "", `hold "n": the grant was lost, and another holder may exist; start this again if the work must be done`},
		{&exclusive.Error{Op: "finish", Key: "r", Kind: exclusive.ErrFenced}, "n", "r", `finish "n/r": refused: a newer holder exists; start this again if the work must be done`},
		{&exclusive.Error{Op: "forget", Key: "r", Kind: exclusive.ErrHeld, Hint: "release it first"}, "n", "r", `forget "n/r": ` + exclusive.ErrHeld.Error() + `: exclusive forget --prefix a_ n r --release takes it first`},
		{errors.New("exclusive: else"), "n", "r", "exclusive: else"},
	} {
		got := said(c.err, line, c.name, c.run)
		if got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v becomes\n%v, not\n%s", c.err, got, c.want)
		}
		if again := said(got, line, "", ""); again.Error() != c.want {
			t.Errorf("said again, %v", again)
		}
	}
}
