// Package command builds the command for tests that run it as a process of its
// own.
package command

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Path is where the command is while Main runs.
var Path string

// Main is for TestMain: it builds the command, from its own module as users do,
// and runs the tests. Its result is their exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exclusive-command-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	Path = filepath.Join(dir, "exclusive")
	build := exec.Command("go", "build", "-o", Path, "./cmd/exclusive")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return m.Run()
}

// DSN is a DSN of package servers as the command takes it, with parameters of
// alternating names and values for MySQL and MariaDB.
func DSN(t testing.TB, dsn string, params ...string) string {
	t.Helper()
	if strings.Contains(dsn, "://") {
		return dsn
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal("the DSN of the tests is not one of go-sql-driver/mysql")
	}
	q := make(url.Values)
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u := url.URL{
		Scheme: "mysql", User: url.UserPassword(config.User, config.Passwd), Host: config.Addr,
		Path: "/" + config.DBName, RawQuery: q.Encode(),
	}
	return u.String()
}
