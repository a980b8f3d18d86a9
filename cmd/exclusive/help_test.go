package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/choose"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/doctor"
)

// walk calls visit with every command.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// newRoot is the command without a world.
func newRoot() *cobra.Command { return rootCommand(environment{}) }

// Every command says what it is for, what its arguments and its exit code mean, and
// has examples; its flags say their defaults and how they are written; lines fit
// on a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	walk(newRoot(), func(cmd *cobra.Command) {
		text := cmd.Long
		if cmd.Short == "" || text == "" || cmd.Example == "" && !cmd.HasSubCommands() {
			t.Errorf("%s: its help lacks something", cmd.CommandPath())
		}
		if cmd.Runnable() && !cmd.HasSubCommands() && !strings.Contains(strings.ToLower(text), "exit code") {
			t.Errorf("%s: its help does not say what the exit code means", cmd.CommandPath())
		}
		for line := range strings.Lines(text + "\n" + cmd.Example) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 110 {
				t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), n, line)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", cmd.CommandPath(), f.Name)
			}
			kind := f.Value.Type()
			isNumber := kind == "int" || kind == "int64" || kind == "duration" || kind == "age"
			noDefault := f.DefValue == "" || f.DefValue == "0" || f.DefValue == "0s"
			if isNumber && noDefault && !strings.Contains(f.Usage, "default") && !strings.Contains(f.Usage, "(needed)") {
				t.Errorf("%s: --%s does not say what it is if it is not given", cmd.CommandPath(), f.Name)
			}
			if kind == "duration" && !strings.Contains(text, "1h30m") {
				t.Errorf("%s: its help does not say how --%s is written", cmd.CommandPath(), f.Name)
			}
			if f.Name == "dsn" && !strings.Contains(text, envDSN) {
				t.Errorf("%s: its help does not say what %s does", cmd.CommandPath(), envDSN)
			}
		})
		for _, argument := range regexp.MustCompile(`[A-Z]{3,}`).FindAllString(cmd.Use, -1) {
			if !strings.Contains(text, argument) && !strings.Contains(text, strings.ToLower(argument)+"s") {
				t.Errorf("%s: its help does not say what %s is", cmd.CommandPath(), argument)
			}
		}
	})
}

// words splits a line as a shell does that knows quotes and nothing else.
func words(line string) (list []string) {
	var word strings.Builder
	var quote rune
	begun := false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, begun = c, true
		case quote == 0 && c == ' ':
			if begun {
				list = append(list, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		list = append(list, word.String())
	}
	return list
}

// parses fails unless a line names a command, with flags that it has.
func parses(t *testing.T, line string) {
	t.Helper()
	args := words(line)
	for len(args) > 0 && strings.Contains(args[0], "=") {
		args = args[1:] // the environment
	}
	if len(args) == 0 || args[0] != "exclusive" {
		t.Errorf("%q does not run exclusive", line)
		return
	}
	cmd, rest, err := newRoot().Find(args[1:])
	if err != nil {
		t.Errorf("%q: %v", line, err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%q: %v", line, err)
		return
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", line, err)
	}
}

// The examples are commands that there are, with flags that they have.
func TestExamples(t *testing.T) {
	t.Parallel()
	walk(newRoot(), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "     ") // a remark
			if line != "" {
				parses(t, line)
			}
		}
	})
}

// So are those of the page about doctor.
func TestDoctorPage(t *testing.T) {
	t.Parallel()
	_, block, ok := strings.Cut(doctor.Page(), "```sh\n")
	block, _, closed := strings.Cut(block, "```")
	if !ok || !closed {
		t.Fatal("the page has no commands")
	}
	for line := range strings.Lines(block) {
		parses(t, strings.TrimSpace(line))
	}
}

// So are the commands that choose names.
func TestChooseNamesCommands(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql", "mariadb", "sqlite"} {
		r, err := choose.Decide(choose.Answers{Invariant: "request", Dialect: dialect})
		if err != nil {
			t.Fatal(err)
		}
		parses(t, r.Migration.Command)
		// It works, and copies what is said.
		dir := t.TempDir()
		args := strings.Fields(strings.Replace(r.Migration.Command, "--dir migrations", "--dir "+dir, 1))[1:]
		var out, errs bytes.Buffer
		if code := dispatch(t.Context(), environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}, args); code != exitOK {
			t.Errorf("%s: exit code %d, %s", r.Migration.Command, code, errs.String())
		}
		for _, file := range r.Migration.Templates {
			_, name, _ := strings.Cut(file, "_")
			if !strings.Contains(out.String(), strings.TrimSuffix(name, ".up.sql")) {
				t.Errorf("%s is not among\n%s", name, out.String())
			}
		}
	}
}

// complete is what the shell is told to offer.
func complete(t *testing.T, typed ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
	if code := dispatch(t.Context(), env, append([]string{"__complete"}, typed...)); code != exitOK {
		t.Errorf("%q: exit code %d, %s", typed, code, errs.String())
	}
	return out.String()
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typed  string // a final space means that a new word begins
		want   []string
		unlike string
	}{
		{"d", []string{"demo", "doctor"}, "bench"},
		{"migrations ", []string{"copy", "check", "list"}, ""},
		{"migrations copy --dialect ", []string{"postgres", "mysql", "mariadb", "sqlite"}, ""},
		{"migrations copy --strategy ", []string{"fencing", "rowlock", "uniquetask", "redisbackend"}, ""},
		{"doctor --strategy fencing,", []string{"fencing,rowlock", "fencing,uniquetask"}, "fencing,fencing"},
		{"doctor --ignore ", []string{"fsync", "maxmemory-policy"}, ""},
		{"bench --strategy=", []string{"casupdate", "redisbackend"}, ""},
		{"choose --invariant ", []string{"work", "numbers"}, ""},
		{"choose --dialect ", []string{"postgres", "redis"}, ""},
		{"ps --strategy ", []string{"fencing", "uniquetask", "redisbackend"}, ""},
		{"doctor --dsn ", []string{"postgres://", "redis://"}, ""},
		{"doctor --p", []string{"--pool", "--processes", "--prefix"}, ""},
	} {
		typed := strings.Fields(c.typed)
		if strings.HasSuffix(c.typed, " ") {
			typed = append(typed, "")
		}
		got := complete(t, typed...)
		for _, want := range c.want {
			if !strings.Contains(got, want+"\n") && !strings.Contains(got, want+"\t") {
				t.Errorf("after %q nobody offers %s:\n%s", c.typed, want, got)
			}
		}
		if c.unlike != "" && strings.Contains(got, c.unlike) {
			t.Errorf("after %q %s is offered:\n%s", c.typed, c.unlike, got)
		}
	}
	// Files only where a file is meant.
	const noFiles, files = ":4\n", ":0\n"
	for typed, directive := range map[string]string{"doctor --dsn-file ": files, "bench --workers ": noFiles, "doctor ": noFiles, "doctor --prefix ": noFiles} {
		if got := complete(t, append(strings.Fields(typed), "")...); !strings.Contains(got, directive) {
			t.Errorf("after %q:\n%s", typed, got)
		}
	}
}

// The scripts are made, and the shells that are here can read theirs.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for shell, check := range map[string][]string{
		"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"}, "powershell": nil,
	} {
		var out, errs bytes.Buffer
		env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
		if code := dispatch(t.Context(), env, []string{"completion", shell}); code != exitOK || !strings.Contains(out.String(), "exclusive") {
			t.Errorf("%s: exit code %d, %s", shell, code, errs.String())
		}
		if check == nil {
			continue
		}
		if _, err := exec.LookPath(check[0]); err != nil {
			continue // not every machine has every shell
		}
		cmd := exec.CommandContext(t.Context(), check[0], check[1:]...)
		cmd.Stdin = &out
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, text)
		}
	}
}
