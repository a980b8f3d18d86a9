package exclusive_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// around is a program with what the snippets of docs name but do not make.
const around = `package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/pgxdb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/migrations"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

var (
	ctx         = context.Background()
	pool, locks *pgxpool.Pool
	results     *sql.DB
	client      *redis.Client
	db          *sqldb.DB
	jobs        *rowlock.Locks[pgx.Tx]
	leases      exclusive.Leaser
	work        exclusive.Work
	scheduled   time.Time
	zone        = time.UTC

	_ = strings.Cut
	_ = strconv.Itoa
)

func customers() []string { return []string{"a", "b", "c", "d", "held"} }

// send says for whom it was called. For one that is named on the command line it fails.
func send(customer string) exclusive.Work {
	return func(context.Context, exclusive.Grant) error {
		if slices.Contains(os.Args[2:], customer) {
			return errors.New("no")
		}
		_, err := fmt.Println("sent", customer)
		return err
	}
}

func render(ctx context.Context) (string, error) { return "the report", ctx.Err() }

// schedule is what one instance at a time does.
func schedule(ctx context.Context, g exclusive.Grant) error {
	leading.Lock()
	defer leading.Unlock()
	_, err := fmt.Println("token", g.Token)
	return err
}

var leading sync.Mutex

func main() {
	pool, err := sql.Open("sqlite", "file:"+os.Args[1]+"?_pragma=busy_timeout(20000)")
	if err != nil {
		log.Fatal(err)
	}
	files, err := fs.Glob(migrations.FS, "sqlite/*.up.sql")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := pool.Exec(string(text)); err != nil {
			log.Fatal(err)
		}
	}
	db = sqldb.NewSQLite(pool)
	if leases, err = fencing.New(db, fencing.Config{}); err != nil {
		log.Fatal(err)
	}
	var instances sync.WaitGroup
	for range 2 {
		instances.Go(func() {
			if err := choosing0(); err != nil {
				log.Fatal(err)
			}
		})
	}
	instances.Wait()

	// A worker has one run, and vanishes: it renews nothing, and goes on for ever.
	dead, err := uniquetask.New(db, uniquetask.Config{Task: "statement", TTL: 2 * time.Second, NoRenew: true})
	if err != nil {
		log.Fatal(err)
	}
	has := make(chan bool)
	go dead.Do(ctx, uniquetask.RunDay(scheduled, zone)+"/held", func(context.Context, exclusive.Grant) error {
		close(has)
		select {}
	})
	<-has
	for range 2 {
		instances.Go(func() {
			if err := uniquetask1(); err != nil {
				log.Fatal(err)
			}
		})
	}
	instances.Wait()
}
`

// Every Go snippet in docs compiles. (That of migrations.md is a program, which
// its own test runs.) The one of choosing.md is run by two instances at once, and so
// is that of uniquetask.md about customers: each gets one, also one whose worker died, and
// the exit code tells of one that did not.
func TestDocSnippets(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	source, snippets := around, 0
	declared := regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) :=`)
	for _, file := range files {
		for i, snippet := range fences(t, file, "go") {
			if strings.HasPrefix(snippet, "package main") {
				continue
			}
			snippets++
			source += fmt.Sprintf("\nfunc %s%d() error {\n", strings.TrimSuffix(filepath.Base(file), ".md"), i)
			if !declared.MatchString(snippet) {
				source += "var err error\n"
			}
			source += strings.ReplaceAll(snippet, "{ … }", "{ return nil }")
			for _, m := range declared.FindAllStringSubmatch(snippet, -1) {
				for name := range strings.SplitSeq(m[1], ", ") {
					source += "_ = " + name + "\n"
				}
			}
			source += "return err\n}\n"
		}
	}
	if snippets < 7 {
		t.Errorf("only %d snippets", snippets)
	}
	dir := t.TempDir()
	name, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, run := range []struct {
		failing []string
		code    int
		sent    []string
	}{
		{nil, 0, []string{"sent a", "sent b", "sent c", "sent d", "sent held"}},
		{[]string{"c"}, 1, []string{"sent a", "sent b", "sent d", "sent held"}},
	} {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{filepath.Join(t.TempDir(), "a.db")}, run.failing...)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		leading := lines[:min(2, len(lines))]
		sent := slices.Sorted(slices.Values(lines[len(leading):]))
		if cmd.ProcessState.ExitCode() != run.code || !slices.Equal(leading, []string{"token 1", "token 2"}) || !slices.Equal(sent, run.sent) {
			t.Errorf("%v\n%s%s", err, out, stderr.String())
		}
	}
}
