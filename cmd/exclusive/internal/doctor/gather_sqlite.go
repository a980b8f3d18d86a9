package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/exclusive-go/exclusive/internal/db"
)

func (g *gatherer) sqlite(ctx context.Context) {
	file, saysBusyTimeout := g.target.File()
	// Opening would make it.
	if info, err := os.Stat(file); err != nil {
		g.Unread["@connect"] = err.Error()
		return
	} else if info.IsDir() {
		g.Unread["@connect"] = file + " is a folder"
		return
	}
	if !g.connect(ctx, "SELECT sqlite_version()", "@version") {
		return
	}
	// Of a file that is no database one hears at the first look.
	if !g.query(ctx, "SELECT count(*) FROM sqlite_schema", []string{"@tables"}) {
		g.Unread["@connect"] = g.Unread["@tables"]
		return
	}
	g.set("account", "the owner of "+filepath.Base(file))
	g.set("file", file)
	for _, pragma := range []string{"journal_mode", "synchronous", "locking_mode", "query_only"} {
		g.query(ctx, "PRAGMA "+pragma, []string{pragma})
	}
	g.query(ctx, "PRAGMA busy_timeout", []string{"@busy_timeout"})
	if !saysBusyTimeout {
		g.set("busy_timeout", 0) // what an application gets that says no more
	}
	g.set("readonly", g.get("query_only"))
	g.set("readonly_by", "query_only")
	g.sqliteWrite(ctx)
	g.tables(ctx, db.SQLite)
	name, kind := fileSystem(file)
	g.set("file_system", name)
	g.set("file_system_kind", kind)
}

// sqliteWrite writes, and takes it back. To begin is not enough: of a file that
// is read-only SQLite says so at the first write.
func (g *gatherer) sqliteWrite(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.answerWait)
	defer cancel()
	conn, err := g.pool.Conn(ctx)
	if err != nil {
		g.fail("@write", err)
		return
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		g.fail("@write", err)
		return
	}
	_, err = conn.ExecContext(ctx, "CREATE TABLE exclusive_doctor (n INTEGER)")
	_, rerr := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	if err = errors.Join(err, rerr); err != nil {
		g.fail("@write", err)
	}
}
