package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/story"
)

// runOn runs a demo on SQLite and returns what it writes. Nothing may be left
// in the directory for temporary files.
func runOn(ctx context.Context, t *testing.T, d demo) (code int, stdout, stderr string) {
	t.Helper()
	tmp := t.TempDir()
	d.places = []place{sqliteIn(tmp)}
	var out, errs bytes.Buffer
	env := environment{stdout: &out, stderr: &errs}
	code = env.exitCode("exclusive demo", d.run(ctx, env))
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return code, out.String(), errs.String()
}

func TestDemo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "timeline.html")
	code, stdout, stderr := runOn(t.Context(), t, demo{html: file})
	if code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{"STORED, the newer result is gone", "REFUSED (ErrFenced)", "Every promise was held", "report by A: WRONG", "report by B: right", file} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), `role="img"`); n != 10 {
		t.Errorf("the picture has %d drawings; there are 5 stories with 2 runs each", n)
	}
	for _, unwanted := range []string{"<script", "http:", "https:", "ZgotmplZ"} {
		if strings.Contains(string(page), unwanted) {
			t.Errorf("the picture has %q", unwanted)
		}
	}
}

func TestDemoJSON(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := runOn(t.Context(), t, demo{asJSON: true})
	if code != exitOK {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	var got resultJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if !got.OK || len(got.Databases) != 1 || len(got.Databases[0].Stories) != 5 {
		t.Fatalf("%+v", got)
	}
	for _, s := range got.Databases[0].Stories {
		if !s.OK || !s.Unguarded.Damaged || s.Guarded.Damaged || s.Guarded.Stored != s.Guarded.Want || len(s.Guarded.Events) == 0 {
			t.Errorf("%+v", s)
		}
	}
}

// A guard that does not guard must be noticed, and so must a run without the
// check in which nothing goes wrong.
func TestSabotage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tamper func(*story.Rig)
		want   []string
	}{
		{"guard", func(r *story.Rig) {
			unguarded := r.Unguarded
			r.A.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
				between()
				return unguarded(ctx, g.Key, value)
			}
		}, []string{"BROKEN", "A's late write was accepted"}},
		{"damage", func(r *story.Rig) {
			unguarded := r.Unguarded
			r.Unguarded = func(ctx context.Context, key, value string) error {
				if value == "report by A" {
					return nil
				}
				return unguarded(ctx, key, value)
			}
		}, []string{"not shown", "no damage to be seen"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := runOn(t.Context(), t, demo{tamper: c.tamper})
			if code != exitNo {
				t.Errorf("exit code %d, not %d\n%s", code, exitNo, stderr)
			}
			for _, want := range append(c.want, "NOT as it must be") {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q:\n%s", want, stdout)
				}
			}
		})
	}
}

// An interrupted demo tidies up as well.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	code, _, stderr := runOn(ctx, t, demo{tamper: func(r *story.Rig) {
		read := r.Read
		r.Read = func(ctx context.Context, key string) (string, error) {
			cancel()
			return read(ctx, key)
		}
	}})
	if code != exitFailed || !strings.Contains(stderr, "interrupted") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func TestPictureEscapes(t *testing.T) {
	t.Parallel()
	const evil = `<script>alert("&'")</script>`
	report := &story.Report{
		Story: story.Story{Title: evil, Promise: evil}, Guard: story.GuardOn, Stored: evil,
		Events: []story.Event{{Actor: "A", Text: evil, Kind: evil, Outcome: evil, Until: 1}},
	}
	page, err := picture([]result{{database: evil, scenes: []scene{{report.Story, report, report}}}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(page, []byte("<script")) {
		t.Error("a text became markup")
	}
}

// tooLate grants what is over by then.
type tooLate struct{ exclusive.Exclusive }

func (tooLate) Do(context.Context, string, exclusive.Work) error {
	return &exclusive.Error{Op: "do", Kind: exclusive.ErrUnavailable, Hint: "too late"}
}

// A story that could not be played on a slow machine is played again with longer
// leases, and one that never can be is told.
func TestDemoPlaysAgain(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		plays := 0
		code, stdout, stderr := runOn(t.Context(), t, demo{asJSON: true, tamper: func(r *story.Rig) {
			if plays++; plays == 1 || always {
				r.A.Exclusive = tooLate{r.A.Exclusive}
			}
		}})
		if always {
			if code != exitFailed || plays != 3 || !strings.Contains(stderr, "too late") {
				t.Errorf("never in time: exit code %d after %d plays, %s", code, plays, stderr)
			}
			continue
		}
		var got resultJSON
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("exit code %d, %v, %s", code, err, stderr)
		}
		if code != exitOK || !got.OK || plays < 9 {
			t.Errorf("late once: exit code %d after %d plays, %s", code, plays, stderr)
		}
		// The grant is as long as it says, however late A hears of it.
		if e := got.Databases[0].Stories[0].Unguarded.Events[0]; e.Actor != "A" || e.Until < 500 {
			t.Errorf("A's lease is no longer: %+v", e)
		}
	}
}
