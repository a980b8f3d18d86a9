package target

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/db"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ dsn, err string }{
		{"postgres://u:topsecret@h/d", ""},
		{"postgresql://u:topsecret@h/d", ""},
		{"mysql://u:topsecret@h/d", ""},
		{"mariadb://u:topsecret@h:3307/d?tls=skip-verify", ""},
		{"sqlite:///tmp/a.db", ""},
		{"redis://u:topsecret@h:6379/0", ""},
		{"rediss://u:topsecret@h:6379/0", ""},
		{"", "names no kind"},
		{"u:topsecret@tcp(h)/d", "names no kind"},
		{"oracle://u:topsecret@h/d", "no kind that is known"},
		{"postgres://u:topsecret@[h/d", "PostgreSQL DSN is not valid"},
		{"mysql://u:topsecret@h/", "names no database"},
		{"mysql://u:topsecret@/d", "MySQL DSN is not valid"},
		{"mysql://u:topsecret@h/d?parseTime=topsecret", "MySQL DSN is not valid"},
		{"mysql://u:topsecret@tcp(h:3306)/d", "looks like mysql://user:password@host:3306/database"},
		{"postgres://u:topsecret/@h/d", "%25 %40"},
		{"redis://u:topsecret/@h/0", "%25 %40"},
		{"sqlite://", "names no file"},
		{"sqlite://:memory:", "names no file"},
		{"redis://u:topsecret@h/x", "Redis DSN is not valid"},
		{"redis://u:topsecret@h/0?topsecret=1", "one of its parameters"},
		{"postgres://u:topsecret@h:99999/d", "its port"},
		{"postgres://u:topsecret@h/d?sslmode=topsecret", "one of its parameters"},
		{"mysql://u:topsecret@h/d?tls=topsecret", "one of its parameters"},
		{"postgres://u:topsecret@h/d?sslmode=verify-full&sslrootcert=/none/ca.pem", "/none/ca.pem"},
		// Characters of a password that end it there.
		{"postgres://u:%zztopsecret@h/d", "%25"},
		{"postgres://u:/topsecret@h/d", "%2F"},
		{"postgres://u:1/topsecret@h/d", "%2F"},
		{"postgres://u:1/topsecret?x@h/d", "%2F"},
		{"postgres://u:1/x?topsecret@h/d?sslmode=disable", "%2F"},
		{"postgres://u:x@topsecret@h/d", "%40"},
		{"mysql://u:/topsecret@h/d", "%2F"},
		{"mysql://u:1/topsecret@h/d", "%2F"},
		{"mysql://u:#topsecret@h/d", "names no database"},
		{"redis://u:1/topsecret@h/0", "%2F"},
		{"redis://u:#topsecret@h/0", ""},
		// These do not.
		{"postgres://u:x#topsecret@h/d", ""},
		{"postgres://u:x?topsecret@h/d", ""},
		{"postgres://h/d?user=me@cloud&password=topsecret", ""},
		{"mysql://u:x@topsecret@h/d", ""},
		{"redis://u:x@topsecret@h/0", ""},
		// This one sets a password, if anything.
		{"mysql://u@h/d?Password=topsecret", "before the host"},
		{"mysql://u:topsecret@h/d?foo=1", ""},
	} {
		_, err := Parse(c.dsn)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q has more than one line", c.dsn, err)
		}
		if c.err == "" {
			if err != nil {
				t.Errorf("%s: %v", c.dsn, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", c.dsn, err)
		} else if strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%s: the secret is in %q", c.dsn, err)
		}
	}
}

// A URL says the same as a DSN in the form of the driver, odd passwords included.
func TestMySQLForms(t *testing.T) {
	t.Parallel()
	const password = "p@ss:w/rd?%&"
	for _, dsn := range []string{
		"u:" + password + "@tcp(h:3306)/d?readTimeout=3s",
		"mysql://u:p%40ss%3Aw%2Frd%3F%25%26@h/d?readTimeout=3s",
	} {
		target, err := ParseMySQL(dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if c := target.mysql; c.User != "u" || c.Passwd != password || c.Addr != "h:3306" || c.DBName != "d" || c.ReadTimeout.Seconds() != 3 {
			t.Errorf("%s: %+v", dsn, c)
		}
	}
}

func TestOpenSQLite(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain.db", "with space and ?.db", "per%41cent.db"} {
		file := filepath.Join(t.TempDir(), name)
		target, err := Parse("sqlite://" + strings.NewReplacer("%", "%25", "?", "%3F").Replace(file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.Open(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "no file "+file) {
			t.Errorf("a file that is not there: %v", err)
		}
		target.Create = true
		o, err := target.Open(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if o.Dialect != db.SQLite || !strings.HasPrefix(o.Name, "SQLite 3.") {
			t.Errorf("%+v", o)
		}
		var opened string
		if err := o.SQL.QueryRowContext(t.Context(), "SELECT file FROM pragma_database_list").Scan(&opened); err != nil || filepath.Base(opened) != name {
			t.Errorf("opened %q: %v", opened, err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestHide(t *testing.T) {
	t.Parallel()
	target, err := ParsePostgres("postgres://u:p%40ss@h/d")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"cannot use postgres://u:p%40ss@h/d", "password p@ss is wrong", "password p%40ss is wrong"} {
		if got := target.Hide(&quoting{text}).Error(); strings.Contains(got, "p@ss") || strings.Contains(got, "p%40ss") {
			t.Errorf("%q", got)
		}
	}
	common, err := ParsePostgres("postgres://u:lease@h/d")
	if err != nil {
		t.Fatal(err)
	}
	if got := common.Hide(&quoting{"u:lease@h: no table exclusive_lease"}).Error(); got != "u***h: no table exclusive_lease" {
		t.Errorf("%q", got)
	}
	if err := target.Hide(io.EOF); err != io.EOF {
		t.Errorf("an error without a secret became %v", err)
	}
}

type quoting struct{ text string }

func (q *quoting) Error() string { return q.text }

// A driver says of each address and each way to it the same again.
func TestOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"refused": "refused",
		"failed to connect to `x`:\n\ta: refused\n\ta: refused": "failed to connect to `x`: a: refused",
		"it failed:\n\ta: refused\n\n\tb: no route":             "it failed: a: refused; b: no route",
		"lookup: no such host\n\tno such host":                  "lookup: no such host",
	} {
		err := errors.New(text)
		if got := OneLine(err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
