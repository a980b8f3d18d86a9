package exclusive_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/exclusive-go/exclusive"
)

var update = flag.Bool("update", false, "rewrite the table in README.md")

const (
	tableBegin = "<!-- table: made from exclusive.Strategies() -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// chooserTable is the table of the README.
func chooserTable() string {
	all := exclusive.Promises{OneWinner: true, OneAtATime: true, TimeBound: true, OncePerKey: true, RefusesStale: true, InTx: true}
	var b strings.Builder
	b.WriteString("| strategy | how |")
	for _, name := range all.Names() {
		fmt.Fprintf(&b, " %s |", name)
	}
	b.WriteString(" cost |\n|---|---|" + strings.Repeat(":-:|", len(all.Names())) + "---|\n")
	for _, s := range exclusive.Strategies() {
		fmt.Fprintf(&b, "| [%s](%s) | %s |", s.Name, s.Name, s.Mechanism)
		for _, promise := range all.Names() {
			tick := " "
			if slices.Contains(s.Promises.Names(), promise) {
				tick = "✓"
			}
			fmt.Fprintf(&b, " %s |", tick)
		}
		fmt.Fprintf(&b, " %s |\n", s.Cost)
	}
	return b.String()
}

func TestReadmeTable(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatal("README.md has no place for the table")
	}
	want := "\n" + chooserTable() + "\n"
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("the table in README.md is stale; run: go test . -run TestReadmeTable -update\nwant:%s", want)
	}
	if err := os.WriteFile("README.md", []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fences returns the code blocks of a language, in order.
func fences(t *testing.T, file, language string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// The README's program is compiled and run, and prints what the README says.
func TestReadmeProgram(t *testing.T) {
	programs, outputs := fences(t, "README.md", "go"), fences(t, "README.md", "text")
	if len(programs) != 1 || len(outputs) != 1 {
		t.Fatalf("%d programs and %d outputs", len(programs), len(outputs))
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(programs[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Dir = dir // its database is made there
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != outputs[0] {
		t.Errorf("%v, it printed %q; the README says %q", err, out, outputs[0])
	}
}

// When it is told to end, the README's program stops its work.
func TestReadmeProgramStops(t *testing.T) {
	const work = `body := "the new price list"`
	program := fences(t, "README.md", "go")[0]
	if !strings.Contains(program, work) {
		t.Fatal("where is the program's work?")
	}
	program = strings.Replace(program, work, `fmt.Println("working"); select { case <-ctx.Done(): fmt.Println("stopped"); return ctx.Err(); case <-time.After(30 * time.Second): }; `+work, 1)
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Dir = dir
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "working" {
		t.Errorf("it begins with %q (%v)", lines.Text(), lines.Err())
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if !lines.Scan() || lines.Text() != "stopped" || lines.Scan() {
		t.Errorf("and ends with %q (%v)", lines.Text(), lines.Err())
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v, not exit code 1", err)
	}
}

// The README's commands are run: the demo here, make test by whoever runs this.
func TestReadmeCommands(t *testing.T) {
	commands := strings.Fields(strings.Join(fences(t, "README.md", "sh"), " "))
	want := strings.Fields("go run ./cmd/exclusive demo make test go get github.com/exclusive-go/exclusive")
	if !slices.Equal(commands, want) {
		t.Fatalf("the README's commands are %q; this test knows %q", commands, want)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./cmd/exclusive", "demo").CombinedOutput(); err != nil {
		t.Errorf("demo: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./cmd/exclusive", "choose", "--invariant", "process").CombinedOutput(); err != nil {
		t.Errorf("choose: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "make", "--dry-run", "test").CombinedOutput(); err != nil {
		t.Errorf("make: %v\n%s", err, out)
	}
	if module, err := os.ReadFile("go.mod"); err != nil || !strings.HasPrefix(string(module), "module "+want[len(want)-1]+"\n") {
		t.Errorf("go get names another module than go.mod (%v)", err)
	}
}

// The command is installed as the pages say, which is the same everywhere, to where
// crontabs look for it. A program of another module can use the clone, as the README says.
func TestReadmeInstall(t *testing.T) {
	const install, at = "GOBIN=/usr/local/bin go install ./cmd/exclusive", "/usr/local/bin/exclusive run"
	for page, want := range map[string][]string{"README.md": {"`" + install + "`", at}, "docs/migrations.md": {"`" + install + "`"}, "docs/command.md": {at}} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range want {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not say %s", page, want)
			}
		}
		if strings.Count(string(text), "go install") != strings.Count(string(text), install) {
			t.Errorf("%s says to install it in another way too", page)
		}
	}
	dir := t.TempDir()
	sh := func(in, command string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", command)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	sh(".", strings.Replace(install, "/usr/local/bin", dir, 1)+" && "+dir+"/exclusive version")

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const clone = "../exclusive"
	replace := regexp.MustCompile("`(go mod edit -replace [^`]*=" + regexp.QuoteMeta(clone) + ")`[^`]*`(go mod tidy)`").FindSubmatch(readme)
	if replace == nil {
		t.Fatal("README.md does not say how to use a clone")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport _ \"github.com/exclusive-go/exclusive/fencing\"\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(dir, "go mod init example.com/app")
	sh(dir, strings.Replace(string(replace[1]), clone, here, 1)+" && "+string(replace[2])+" && go build")
}

// Links within the repository lead somewhere, those to a heading too.
func TestDocLinks(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(file), m[1])
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if m[2] != "" && !slices.Contains(anchors(t, to), m[2]) {
				t.Errorf("%s: %s has no heading %s", file, to, m[2])
			}
		}
	}
}

// anchors are what links to the headings of a page end in.
func anchors(t *testing.T, page string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		words := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, "#"+strings.ReplaceAll(words, " ", "-"))
	}
	return list
}
