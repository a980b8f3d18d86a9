// Package internal_test holds the module to its rules about dependencies.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/exclusive-go/exclusive"

var update = flag.Bool("update", false, "write deps.txt instead of comparing with it")

// only lists the packages that may link modules of others, and which. A name that
// ends in a slash stands for all that starts with it.
var only = []struct {
	packages string
	modules  []string // empty: any that deps.txt lists
}{
	{"db/pgxdb", []string{"github.com/jackc/", "golang.org/x/sync", "golang.org/x/text"}},
	{"db/mysqldb", []string{"github.com/go-sql-driver/mysql", "filippo.io/edwards25519"}},
	{"redisbackend", []string{"github.com/redis/go-redis/v9", "github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"}},
	{"cmd/", nil},
}

func mayLink(pkg, mod string) bool {
	for _, rule := range only {
		if matches(rule.packages, pkg) {
			return rule.modules == nil || slices.ContainsFunc(rule.modules, func(m string) bool { return matches(m, mod) })
		}
	}
	return false
}

func matches(pattern, name string) bool {
	return name == pattern || strings.HasSuffix(pattern, "/") && strings.HasPrefix(name, pattern)
}

// Users link what they import. So a strategy links nothing but the standard library
// and this module, and each driver hides in the one package that is about it.
func TestLinkedModules(t *testing.T) {
	for pkg, mods := range linkedModules(t) {
		if pkg == testsOnly {
			continue
		}
		for mod := range mods {
			if !mayLink(pkg, mod) {
				t.Errorf("package %s links %s; only the packages named in deps_test.go may link other modules, and only their own", pkg, mod)
			}
		}
	}
}

// A new dependency is a decision: it has to show up in a change of deps.txt.
func TestDependencyList(t *testing.T) {
	var list []string
	for pkg, mods := range linkedModules(t) {
		for mod := range mods {
			list = append(list, pkg+" "+mod)
		}
	}
	slices.Sort(list)
	got := "# The modules that each package links, and those that only tests link.\n" +
		"# After a deliberate change: go test ./internal -update\n" +
		strings.Join(list, "\n") + "\n"
	if *update {
		if err := os.WriteFile("deps.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range difference(got, string(want)) {
		t.Errorf("not listed in deps.txt: %s", line)
	}
	for line := range difference(string(want), got) {
		t.Errorf("listed in deps.txt, but no longer so: %s", line)
	}
	if t.Failed() {
		t.Log("if this is meant, run: go test ./internal -update")
	}
}

func difference(a, b string) map[string]bool {
	lines := make(map[string]bool)
	for line := range strings.Lines(a) {
		lines[strings.TrimSpace(line)] = true
	}
	for line := range strings.Lines(b) {
		delete(lines, strings.TrimSpace(line))
	}
	return lines
}

// Whatever go.mod requires is in the module graph of every user, even if only our
// tests use it.
func TestGoMod(t *testing.T) {
	var mod struct {
		Require []struct{ Path string }
		Replace []json.RawMessage
		Tool    []json.RawMessage
	}
	if err := json.Unmarshal(goCommand(t, "..", "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Error("go.mod has a replace directive, which users do not get: remove it")
	}
	if len(mod.Tool) > 0 {
		t.Error("go.mod has a tool directive, which adds to the module graph of users: run tools with go run at a version")
	}
	for _, require := range mod.Require {
		for _, unwanted := range []string{"github.com/testcontainers/", "github.com/golang-migrate/", "github.com/pressly/goose", "github.com/anishathalye/porcupine", "go.uber.org/goleak"} {
			if strings.HasPrefix(require.Path, unwanted) {
				t.Errorf("go.mod requires %s: what only tests on servers need belongs in integration_test/go.mod", require.Path)
			}
		}
	}
	if _, err := os.Stat("../go.work"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a go.work file, which hides from us what users get: remove it (%v)", err)
	}
}

// A user of one SQL strategy has few modules in the module graph, and links one: ours.
func TestConsumer(t *testing.T) {
	const most = 30
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"casupdate", "rowlock", "uniquetask", "fencing"} {
		t.Run(strategy, func(t *testing.T) {
			dir := t.TempDir()
			sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{
				"go.mod": fmt.Sprintf("module consumer\n\ngo 1.26\n\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, root),
				"go.sum": string(sums),
				"main.go": fmt.Sprintf("package main\n\nimport (\n\t_ %q\n\t_ %q\n)\n\nfunc main() {}\n",
					module+"/"+strategy, module+"/db/sqldb"),
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			linked := strings.Fields(string(goCommand(t, dir, "list", "-mod=mod", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")))
			slices.Sort(linked)
			if linked = slices.Compact(linked); !slices.Equal(linked, []string{"consumer", module}) {
				t.Errorf("a user of %s links these modules: %v", strategy, linked)
			}
			graph := strings.Split(strings.TrimSpace(string(goCommand(t, dir, "list", "-mod=mod", "-m", "all"))), "\n")
			t.Logf("%d modules in the graph", len(graph))
			if len(graph) > most {
				t.Errorf("a user of %s gets %d modules in the module graph, more than %d:\n%s", strategy, len(graph), most, strings.Join(graph, "\n"))
			}
		})
	}
}

// testsOnly stands for the packages of all tests.
const testsOnly = "(tests)"

// linkedModules returns the modules of others that each of our packages links.
func linkedModules(t *testing.T) map[string]map[string]bool {
	t.Helper()
	type pkg struct {
		ImportPath string
		Module     *struct {
			Path string
			Main bool
		}
		ForTest string
		Deps    []string
	}
	packages := make(map[string]pkg)
	out := json.NewDecoder(bytes.NewReader(goCommand(t, "..", "list", "-deps", "-test", "-json=ImportPath,Module,ForTest,Deps", "./...")))
	for {
		var p pkg
		err := out.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
	links := func(p pkg) map[string]bool {
		mods := make(map[string]bool)
		for _, dep := range p.Deps {
			if m := packages[dep].Module; m != nil && !m.Main {
				mods[m.Path] = true
			}
		}
		return mods
	}

	linked := map[string]map[string]bool{testsOnly: {}}
	for path, p := range packages {
		if p.Module == nil || !p.Module.Main || p.ForTest != "" {
			continue
		}
		if tested, isTest := strings.CutSuffix(path, ".test"); isTest {
			own := links(packages[tested])
			maps.Copy(linked[testsOnly], without(links(p), own))
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
		if name == "" {
			name = "."
		}
		linked[name] = links(p)
	}
	return linked
}

func without(set, other map[string]bool) map[string]bool {
	maps.DeleteFunc(set, func(s string, _ bool) bool { return other[s] })
	return set
}

func goCommand(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}
