package templates

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format is the tool whose files are in a folder.
type Format string

// The formats.
const (
	GolangMigrate Format = "golang-migrate" // NNN_name.up.sql and NNN_name.down.sql
	Goose         Format = "goose"          // NNN_name.sql with both
)

// Numbering is how the files of a folder are numbered.
type Numbering string

// The ways of numbering.
const (
	Sequential Numbering = "sequential" // the number after the highest, with as many digits
	Timestamp  Numbering = "timestamp"  // YYYYMMDDHHMMSS, in UTC
)

const stamp = "20060102150405"

// folder is what is in a folder of migrations.
type folder struct {
	dir       string
	format    Format    // "" if it cannot be told
	numbering Numbering // "" if it cannot be told
	highest   uint64
	digits    int
	sets      []*set
}

// set is a migration in a folder that is a copy of a template.
type set struct {
	header
	number   string
	up, down string // paths; the same for goose
}

// path is an example of the files.
func (s *set) path() string { return cmp.Or(s.up, s.down) }

var numbered = regexp.MustCompile(`^([0-9]+)_.*?(\.up\.sql|\.down\.sql|\.sql|\.go)$`)

// scan reads a folder. format is what its user says, or empty.
func scan(dir string, format Format) (f *folder, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the folder %s does not exist: make it, or correct the path", dir)
	case err != nil:
		return nil, fmt.Errorf("the folder of migrations cannot be read: %w", err)
	}
	f = &folder{dir: dir, format: format}
	var pair, single, inGo, other string // an example of each
	for _, e := range entries {
		m := numbered.FindStringSubmatch(e.Name())
		switch {
		case e.IsDir(), strings.HasSuffix(e.Name(), "_test.go"):
			continue
		case m == nil:
			if strings.HasSuffix(e.Name(), ".sql") {
				other = e.Name()
			}
			continue
		case m[2] == ".up.sql" || m[2] == ".down.sql":
			pair = e.Name()
		case m[2] == ".sql":
			single = e.Name()
		default:
			inGo = e.Name()
		}
		number, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: the number of the migration is too large", e.Name())
		}
		if number >= f.highest {
			f.highest, f.digits, f.numbering = number, len(m[1]), numberingOf(m[1])
		}
		if m[2] != ".go" {
			if err := f.read(e.Name(), m[1], m[2]); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case format != "":
	case pair != "" && single != "":
		return nil, fmt.Errorf("%s has files of golang-migrate (%s) and of goose (%s): say which format is meant", dir, pair, single)
	case pair != "":
		f.format = GolangMigrate
	case single != "":
		f.format = Goose
	case other != "":
		return nil, fmt.Errorf("%s has files of SQL, but none that begins with the number of a migration (%s is one): say which format is meant if this is the right folder", dir, other)
	case inGo != "": // golang-migrate has no migrations in Go
		f.format = Goose
	}
	if format == GolangMigrate && pair == "" && single != "" || format == Goose && single == "" && pair != "" {
		return nil, fmt.Errorf("%s has no files of %s, but %s: the two formats cannot share a folder", dir, format, pair+single)
	}
	return f, nil
}

// numberingOf tells timestamps from other numbers, which seconds since 1970 are
// too: the number after the highest is right for them.
func numberingOf(number string) Numbering {
	if _, err := time.Parse(stamp, number); err == nil {
		return Timestamp
	}
	return Sequential
}

// read adds a file to the sets if it is a copy of a template.
func (f *folder) read(name, number, suffix string) error {
	path := filepath.Join(f.dir, name)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("the folder of migrations cannot be read: %w", err)
	}
	h, ok := headerOf(string(text))
	if !ok {
		return nil
	}
	s := &set{header: h, number: number}
	if i := slices.IndexFunc(f.sets, func(o *set) bool { return o.number == number && o.template == h.template }); i >= 0 && suffix != ".sql" {
		s = f.sets[i]
	} else {
		f.sets = append(f.sets, s)
	}
	switch suffix {
	case ".up.sql":
		s.header, s.up = h, path // the one that counts
	case ".down.sql":
		s.down = path
	default:
		s.up, s.down = path, path
	}
	return nil
}

// headerOf finds the header among the comments that a file begins with.
func headerOf(text string) (h header, ok bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if h, ok := parseHeader(line); ok {
			return h, true
		}
		if line != "" && !strings.HasPrefix(line, "--") {
			break
		}
	}
	return h, false
}

// isCopy reports whether a set is a copy of the template with these names.
func (t *Template) isCopy(s *set, n Names) bool {
	return s.template == t.Name && s.dialect == t.Dialect.String() && s.names.full() == n.full()
}

// find returns the first copy of a template with these names, or nil.
func (f *folder) find(t Template, n Names) *set {
	for _, s := range f.sets {
		if t.isCopy(s, n) {
			return s
		}
	}
	return nil
}

// numbers returns a function that makes the next numbers, of n altogether.
func (f *folder) numbers(how Numbering, n int, now time.Time) func() string {
	how = cmp.Or(how, f.numbering, Sequential)
	digits := f.digits
	if digits == 0 { // what the tools begin with
		digits = map[Format]int{GolangMigrate: 6, Goose: 5}[f.format]
	}
	last := f.highest
	// The last number is that of now, so that files made a moment later follow.
	at := now.UTC().Add(-time.Duration(n) * time.Second)
	return func() string {
		if at = at.Add(time.Second); how == Timestamp {
			if number, err := strconv.ParseUint(at.Format(stamp), 10, 64); err == nil && number > last {
				last = number
				return strconv.FormatUint(last, 10)
			}
			if t, err := time.Parse(stamp, strconv.FormatUint(last, 10)); err == nil {
				at = t.Add(time.Second)
				last, _ = strconv.ParseUint(at.Format(stamp), 10, 64)
				return strconv.FormatUint(last, 10)
			}
		}
		last++
		return fmt.Sprintf("%0*d", digits, last)
	}
}
