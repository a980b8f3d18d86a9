package db

import "testing"

func TestBind(t *testing.T) {
	const query = `UPDATE "a?""?" SET x = ?, y = ? WHERE "z" = ?`
	if got := Postgres.Bind(query); got != `UPDATE "a?""?" SET x = $1, y = $2 WHERE "z" = $3` {
		t.Errorf("%s", got)
	}
	for _, d := range []Dialect{MySQL, MariaDB, SQLite} {
		if got := d.Bind(query); got != query {
			t.Errorf("%s: %s", d, got)
		}
	}
}
