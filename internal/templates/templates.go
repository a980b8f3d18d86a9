// Package templates is what the command and the tests know about the files of
// package migrations: which there are and what each makes, how they look with
// other names and in the format of another tool, and how they get into a folder
// of migrations.
//
// The files are the only place that says what the schema is. All else is read
// from them.
package templates

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/migrations"
)

// Template is a migration, up and down, that makes one object.
type Template struct {
	Dialect db.Dialect
	// Name is that of the file, without its number: strategy_object.
	Name     string
	Strategy string
	Version  int
	// About is the first sentence of the file's comment.
	About string
	// Object is what up makes and down drops.
	Object Object

	up, down string // with the default names, without the header
}

// Object is a table or a sequence.
type Object struct {
	Kind Kind
	// Name is what follows the prefix.
	Name       string
	Columns    []Column
	PrimaryKey []string
	// Privileges are what the application's role needs.
	Privileges []string
}

// Kind is the kind of an object.
type Kind string

// The kinds of objects.
const (
	Table    Kind = "table"
	Sequence Kind = "sequence"
)

// Column of a table.
type Column struct {
	Name string
	Type string // in lower case
	Null bool
}

// Dialects lists the dialects that there are templates for.
func Dialects() []db.Dialect { return []db.Dialect{db.Postgres, db.MySQL, db.MariaDB, db.SQLite} }

// ParseDialect reads a dialect's name.
func ParseDialect(name string) (db.Dialect, error) {
	var known []string
	for _, d := range Dialects() {
		if d.String() == name {
			return d, nil
		}
		known = append(known, d.String())
	}
	return 0, fmt.Errorf("there is no dialect %q; it is one of %s", name, strings.Join(known, ", "))
}

// Strategies lists the strategies that have templates, in the order of those.
func Strategies() []string {
	var list []string
	for _, t := range all(db.SQLite) {
		if !slices.Contains(list, t.Strategy) {
			list = append(list, t.Strategy)
		}
	}
	return list
}

// ValidStrategies fails if one has no templates.
func ValidStrategies(strategies []string) error {
	for _, s := range strategies {
		if s == "casupdate" {
			return errors.New("casupdate works on a table of the application's own and has no template; casupdate_columns.sql.example in package migrations shows what it can use there")
		}
		if !slices.Contains(Strategies(), s) {
			return fmt.Errorf("there is no strategy %q with templates; there are %s", s, strings.Join(Strategies(), ", "))
		}
	}
	return nil
}

// Of returns the templates of a dialect for the strategies that are named, or
// of all.
func Of(d db.Dialect, strategies []string) ([]Template, error) {
	if d == 0 {
		return nil, errors.New("the dialect is not given")
	}
	if err := ValidStrategies(strategies); err != nil {
		return nil, err
	}
	if len(strategies) == 0 {
		return slices.Clone(all(d)), nil
	}
	return slices.DeleteFunc(slices.Clone(all(d)), func(t Template) bool { return !slices.Contains(strategies, t.Strategy) }), nil
}

// all returns the templates of a dialect in the order of their numbers. That
// they can be read is a matter of this module's own files, and tested.
func all(d db.Dialect) []Template {
	list, err := loaded()
	if err != nil {
		panic("package migrations: " + err.Error())
	}
	return list[d]
}

var loaded = sync.OnceValues(func() (map[db.Dialect][]Template, error) {
	list := make(map[db.Dialect][]Template)
	for _, d := range Dialects() {
		files, err := fs.Glob(migrations.FS, d.String()+"/*.up.sql")
		if err != nil {
			return nil, err
		}
		for _, file := range files { // sorted
			t, err := load(d, file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			list[d] = append(list[d], t)
		}
	}
	return list, nil
})

func load(d db.Dialect, file string) (t Template, err error) {
	up, err := fs.ReadFile(migrations.FS, file)
	if err != nil {
		return t, err
	}
	down, err := fs.ReadFile(migrations.FS, strings.TrimSuffix(file, ".up.sql")+".down.sql")
	if err != nil {
		return t, err
	}
	_, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".up.sql"), "_")
	t = Template{Dialect: d, Name: name}
	t.Strategy, _, _ = strings.Cut(name, "_")
	for _, direction := range []struct {
		text string
		body *string
	}{{string(up), &t.up}, {string(down), &t.down}} {
		first, body, _ := strings.Cut(direction.text, "\n")
		h, ok := parseHeader(first)
		if !ok || h.template != name || h.dialect != d.String() || h.names != (Names{}) || t.Version != 0 && h.version != t.Version {
			return t, fmt.Errorf("the header %q is not that of the file", first)
		}
		t.Version, *direction.body = h.version, body
	}
	t.About = about(t.up)
	t.Object, err = parseObject(t.up)
	return t, err
}

// about is the first sentence of the comment that sql begins with.
func about(sql string) string {
	var text []string
	for _, line := range strings.Split(sql, "\n") {
		line, ok := strings.CutPrefix(line, "-- ")
		if !ok {
			break
		}
		text = append(text, line)
	}
	sentence, _, _ := strings.Cut(strings.Join(text, " "), ". ")
	return strings.TrimSuffix(sentence, ".")
}

var grantLine = regexp.MustCompile(`(?m)^-- (GRANT (.+) ON (?:SEQUENCE )?\w+ TO app)$`)

// parseObject reads what a template's statement makes. It knows the form that
// the templates have: a column a line.
func parseObject(up string) (o Object, err error) {
	var body strings.Builder
	var words []string // those of the first line
	for _, t := range lex(up) {
		switch {
		case t.kind == comment:
		case t.kind == symbol && t.text == "(" && o.Kind == "":
			if len(words) != 3 || words[1] != "TABLE" {
				return o, fmt.Errorf("makes no table: %q", words)
			}
			o.Kind, o.Name = Table, strings.TrimPrefix(words[2], strategy.DefaultPrefix)
		case o.Kind == "" && t.kind == word:
			words = append(words, t.text)
		case o.Kind == Table:
			body.WriteString(t.text)
		}
	}
	if o.Kind == "" {
		if len(words) < 3 || words[1] != "SEQUENCE" {
			return o, fmt.Errorf("makes neither a table nor a sequence: %q", words)
		}
		o.Kind, o.Name = Sequence, strings.TrimPrefix(words[2], strategy.DefaultPrefix)
	}
	columns, _, _ := strings.Cut(body.String(), "\n)")
	for line := range strings.SplitSeq(columns, "\n") {
		f := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), ","))
		switch {
		case len(f) == 0:
		case f[0] == "PRIMARY":
			_, list, _ := strings.Cut(strings.TrimSuffix(strings.Join(f, " "), ")"), "(")
			o.PrimaryKey = strings.Split(list, ", ")
		case len(f) < 2:
			return o, fmt.Errorf("a column that cannot be read: %q", line)
		default:
			rest := strings.Join(f[2:], " ")
			o.Columns = append(o.Columns, Column{f[0], strings.ToLower(f[1]), !strings.Contains(rest, "NOT NULL")})
			if strings.Contains(rest, "PRIMARY KEY") {
				o.PrimaryKey = []string{f[0]}
			}
		}
	}
	if o.Kind == Table && (len(o.Columns) == 0 || len(o.PrimaryKey) == 0) {
		return o, errors.New("a table without columns or without a primary key")
	}
	if m := grantLine.FindStringSubmatch(up); m != nil {
		o.Privileges = strings.Split(m[2], ", ")
	}
	return o, nil
}

// Names are the names of the objects, as in a strategy's configuration.
type Names struct {
	Schema string // empty: none is written
	Prefix string // empty: the default
}

// Validate checks that the names can be those of every object.
func (n Names) Validate() error {
	return strategy.ValidNames(n.Schema, n.prefix(), "task_floor") // the longest
}

func (n Names) prefix() string { return strategy.Default(n.Prefix, strategy.DefaultPrefix) }

// full fills in the default, so that equal names compare as equal.
func (n Names) full() Names { return Names{n.Schema, n.prefix()} }

// Quoted is the object's name as SQL writes it.
func (t *Template) Quoted(n Names) string {
	return strategy.Table(t.Dialect, n.Schema, n.prefix(), t.Object.Name)
}

// Bare is the object's name with its prefix, as catalogs have it.
func (t *Template) Bare(n Names) string { return n.prefix() + t.Object.Name }

// GrantOf is the statement that gives a user one privilege.
func (t *Template) GrantOf(privilege string, n Names, user string) string {
	kind := ""
	if t.Dialect == db.Postgres && t.Object.Kind == Sequence {
		kind = "SEQUENCE "
	}
	return "GRANT " + privilege + " ON " + kind + t.Quoted(n) + " TO " + user
}

// Grant is the statement that gives the application's role what it needs, or
// empty if there are no roles.
func (t *Template) Grant(n Names) string {
	if m := grantLine.FindStringSubmatch(t.up); m != nil {
		return t.named(m[1], n)
	}
	return ""
}

// Up is the statement that makes the object, with its comments.
func (t *Template) Up(n Names) string { return t.named(t.up, n) }

// Down is the statement that drops the object, with its comments.
func (t *Template) Down(n Names) string { return t.named(t.down, n) }

// named writes the object's name in place of the default one: where it is a
// name in the statement, and in a GRANT that is commented out. Prose and strings
// stay as they are. With the default names the text does.
func (t *Template) named(sql string, n Names) string {
	if n.full() == (Names{}).full() {
		return sql
	}
	var b strings.Builder
	for _, tok := range lex(sql) {
		switch {
		case tok.kind == word && tok.text == strategy.DefaultPrefix+t.Object.Name:
			b.WriteString(t.Quoted(n))
		case tok.kind == comment && strings.HasPrefix(tok.text, "-- GRANT "):
			b.WriteString("-- " + t.named(strings.TrimPrefix(tok.text, "-- "), n))
		default:
			b.WriteString(tok.text)
		}
	}
	return b.String()
}

// header is the first line of a template and of each copy: what it is a copy of.
type header struct {
	template, dialect string
	version           int
	names             Names
}

var headerLine = regexp.MustCompile(`^-- exclusive: (\w+) for (\w+), version (\d+)` +
	`(?:, prefix ("(?:[^"\\]|\\.)*"))?(?:, schema ("(?:[^"\\]|\\.)*"))?$`)

func (h header) String() string {
	s := fmt.Sprintf("-- exclusive: %s for %s, version %d", h.template, h.dialect, h.version)
	if n := h.names.full(); n.Prefix != strategy.DefaultPrefix {
		s += ", prefix " + strconv.Quote(n.Prefix)
	}
	if h.names.Schema != "" {
		s += ", schema " + strconv.Quote(h.names.Schema)
	}
	return s
}

func (t *Template) header(n Names) header { return header{t.Name, t.Dialect.String(), t.Version, n} }

func parseHeader(line string) (h header, ok bool) {
	m := headerLine.FindStringSubmatch(strings.TrimSuffix(line, "\r"))
	if m == nil {
		return h, false
	}
	h = header{template: m[1], dialect: m[2]}
	var errs [3]error
	h.version, errs[0] = strconv.Atoi(m[3])
	for i, into := range []*string{&h.names.Prefix, &h.names.Schema} {
		if quoted := m[4+i]; quoted != "" {
			*into, errs[1+i] = strconv.Unquote(quoted)
		}
	}
	return h, errors.Join(errs[:]...) == nil
}
