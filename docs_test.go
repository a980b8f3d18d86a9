package exclusive_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// around is a program with what the snippets of docs name but do not make.
const around = `package main

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"log"
	"os"
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
	jobs        *rowlock.Locks[pgx.Tx]
	leases      exclusive.Leaser
	work        exclusive.Work
	scheduled   time.Time
	zone        = time.UTC

	_ = strings.Cut
	_ = strconv.Itoa
)

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
	pool, err := sql.Open("sqlite", "file:docs?mode=memory&cache=shared&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	files, err := fs.Glob(migrations.FS, "sqlite/*_fencing_*.up.sql")
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
	if leases, err = fencing.New(sqldb.NewSQLite(pool), fencing.Config{}); err != nil {
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
}
`

// Every Go snippet in docs compiles. (That of migrations.md is a program, which
// its own test runs.) The one of choosing.md is run by two instances at once.
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
	name := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", name)
	var stderr strings.Builder // where go tells of modules that it downloads
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || string(out) != "token 1\ntoken 2\n" {
		t.Errorf("%v\n%s%s", err, out, stderr.String())
	}
}
