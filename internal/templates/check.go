package templates

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Difference is something in which a folder's copies differ from the templates.
type Difference struct {
	Template string  `json:"template"`
	Path     string  `json:"path,omitempty"` // of the file that differs, or empty
	Problem  Problem `json:"problem"`
	Text     string  `json:"text"` // what is wrong, and what to do about it
}

// Problem is a kind of Difference.
type Problem string

// The problems that copies can have.
const (
	Missing  Problem = "missing"  // there is no copy, or no down file
	Changed  Problem = "changed"  // the SQL differs
	Older    Problem = "older"    // it is a copy of an older version
	Newer    Problem = "newer"    // it is a copy of a version that is not known here
	Repeated Problem = "repeated" // another file makes the same
	Foreign  Problem = "foreign"  // it is for another dialect, or of nothing that is known
)

// CheckFolder compares the copies in a folder with the templates. Without
// strategies it looks at those of which the folder has a copy. Names count if
// they are not the default: without them it looks at copies with any names.
func CheckFolder(s Selection, dir string, format Format) (differences []Difference, err error) {
	if err := (CopyOptions{Selection: s, Dir: dir, Format: format}).Validate(); err != nil {
		return nil, err
	}
	list, err := s.templates()
	if err != nil {
		return nil, err
	}
	f, err := scan(dir, format)
	if err != nil {
		return nil, err
	}
	anyNames := s.Names.full() == (Names{}).full()
	var sets []Names // that are looked at
	strategies := make(map[Names][]string)
	for _, c := range f.sets {
		i := slices.IndexFunc(all(s.Dialect), func(t Template) bool { return t.Name == c.template })
		if c.dialect != s.Dialect.String() || i < 0 {
			differences = append(differences, Difference{c.template, c.path(), Foreign,
				fmt.Sprintf("this is %s for %s, and the folder is checked for %s", c.template, c.dialect, s.Dialect)})
			continue
		}
		n := c.names.full()
		if (anyNames || n == s.Names.full()) && !slices.Contains(sets, n) {
			sets = append(sets, n)
		}
		strategies[n] = append(strategies[n], all(s.Dialect)[i].Strategy)
	}
	if len(sets) == 0 {
		sets = []Names{s.Names.full()}
	}
	for _, n := range sets {
		for _, t := range list {
			if len(s.Strategies) == 0 && len(strategies[n]) > 0 && !slices.Contains(strategies[n], t.Strategy) {
				continue
			}
			found, err := t.compare(f, n)
			if err != nil {
				return nil, err
			}
			differences = append(differences, found...)
		}
	}
	return differences, nil
}

// compare looks at the copy of a template.
func (t *Template) compare(f *folder, n Names) (differences []Difference, err error) {
	differ := func(path string, p Problem, format string, args ...any) {
		differences = append(differences, Difference{t.Name, path, p, fmt.Sprintf(format, args...)})
	}
	s := f.find(*t, n)
	for _, other := range f.sets {
		if other != s && s != nil && t.isCopy(other, n) {
			differ(other.path(), Repeated, "%s is made by %s, too: remove one of them", t.Quoted(n), s.path())
		}
	}
	switch {
	case s == nil:
		differ("", Missing, "no file makes %s; copy adds it", t.Quoted(n))
		return differences, nil
	case s.up == "":
		differ(s.down, Missing, "the up file is missing, or has lost its first line")
		return differences, nil
	case s.version > t.Version:
		differ(s.up, Newer, "version %d is not known here, only %d: use the version of this command that made it", s.version, t.Version)
		return differences, nil
	case s.version < t.Version:
		differ(s.up, Older, "version %d, and the template is at %d: see the release notes for the migration between them", s.version, t.Version)
		return differences, nil
	}
	if s.down == "" {
		differ(s.up, Missing, "the down file is missing, or has lost its first line")
	}
	for _, part := range []struct{ path, what, want string }{{s.up, "up", t.Up(n)}, {s.down, "down", t.Down(n)}} {
		if part.path == "" {
			continue
		}
		text, err := os.ReadFile(part.path)
		if err != nil {
			return nil, fmt.Errorf("the folder of migrations cannot be read: %w", err)
		}
		up, down, single := strings.Cut(string(text), "\n-- +goose Down")
		got := up
		if single && part.what == "down" {
			got = down
		}
		if !t.sameCode(part.want, got) {
			differ(part.path, Changed, "the SQL for %s is not that of the template; comments do not count", part.what)
		}
	}
	return differences, nil
}
