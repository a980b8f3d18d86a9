package templates

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
)

var update = flag.Bool("update", false, "write the golden folders instead of comparing with them")

// noon is when the tests copy.
var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func options(dir string) CopyOptions {
	return CopyOptions{Selection: Selection{Dialect: db.Postgres}, Dir: dir, Now: noon}
}

// folderOf makes a folder with files.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// filesOf reads a folder.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(text)
	}
	return files
}

func namesOf(t *testing.T, dir string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(filesOf(t, dir)))
}

func mustCopy(t *testing.T, o CopyOptions) Copied {
	t.Helper()
	done, err := Copy(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// What is copied, to the letter. To see a change: go test ./internal/templates -update
func TestGolden(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before map[string]string
		change func(*CopyOptions)
	}{
		"empty":       {nil, func(o *CopyOptions) { o.Strategies = []string{"rowlock"} }},
		"sequential":  {map[string]string{"041_users.up.sql": "", "README.md": ""}, func(o *CopyOptions) { o.Dialect, o.Strategies = db.MySQL, []string{"rowlock"} }},
		"timestamp":   {map[string]string{"20240229101112_users.up.sql": ""}, func(o *CopyOptions) { o.Dialect, o.Strategies = db.SQLite, []string{"uniquetask"} }},
		"goose":       {map[string]string{"00009_users.sql": ""}, func(o *CopyOptions) { o.Strategies = []string{"rowlock"} }},
		"goose names": {nil, func(o *CopyOptions) { o.Format, o.Names = Goose, Names{"Tenant-1", "app_"} }},
		"names": {nil, func(o *CopyOptions) {
			o.Dialect, o.Names, o.Numbering = db.MariaDB, Names{"", "order "}, Timestamp
			o.Strategies = []string{"fencing"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(folderOf(t, c.before))
			c.change(&o)
			done := mustCopy(t, o)
			got := filesOf(t, o.Dir)
			if len(done.Written)+len(c.before) != len(got) || len(done.Present) != 0 {
				t.Errorf("it told of %d files and wrote %d", len(done.Written), len(got)-len(c.before))
			}
			for name, text := range c.before {
				if got[name] != text {
					t.Errorf("%s was changed", name)
				}
				delete(got, name)
			}
			golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-"))
			if *update {
				if err := errors.Join(os.RemoveAll(golden), os.MkdirAll(golden, 0o755)); err != nil {
					t.Fatal(err)
				}
				for name, text := range got {
					if err := os.WriteFile(filepath.Join(golden, name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := filesOf(t, golden)
			for _, name := range slices.Sorted(maps.Keys(want)) {
				if got[name] != want[name] {
					t.Errorf("%s is\n%s\nwant\n%s", name, got[name], want[name])
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%s is not in %s", name, golden)
			}
		})
	}
}

// Numbers go on as the folder's do.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before    string // names of files
		format    Format
		numbering Numbering
		want      string // the first two numbers, or part of the error
	}{
		{"", "", "", "000001 000002"},
		{"", Goose, "", "00001 00002"},
		{"", "", Timestamp, "20261129115954 20261129115955"}, // the last is noon
		{"1_a.up.sql 9_b.up.sql", "", "", "10 11"},
		{"0009_a.up.sql 0010_b.down.sql", "", "", "0011 0012"},
		{"00002_a.sql 00003_b.go", "", "", "00004 00005"},
		{"00002_a.sql 00003_b_test.go", "", "", "00003 00004"}, // goose runs no tests
		{"20200101000000_a.sql", "", "", "20261129115954 20261129115955"},
		{"20261129115956_a.sql", "", "", "20261129115957 20261129115958"},
		{"20301231235959_a.sql", "", "", "20310101000000 20310101000001"},
		{"20301231235959_a.sql", "", Sequential, "20301231235960 20301231235961"},
		{"20301399000000_a.sql", "", "", "20301399000001 20301399000002"}, // no time
		{"20301399000000_a.sql", "", Timestamp, "20301399000001 20301399000002"},
		{"1700000000_a.up.sql", "", "", "1700000001 1700000002"}, // seconds
		{"00001_a.sql 20200101000000_b.sql", "", "", "20261129115954 20261129115955"},
		{"0007_a.up.sql", "", Timestamp, "20261129115954 20261129115955"},
		{"99999999999999999999_a.up.sql", "", "", "too large"},
	} {
		files := make(map[string]string)
		for _, name := range strings.Fields(c.before) {
			files[name] = ""
		}
		o := options(folderOf(t, files))
		o.Format, o.Numbering, o.Strategies = c.format, c.numbering, []string{"fencing", "uniquetask", "redisbackend"}
		done, err := Copy(t.Context(), o)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v", c.before, err)
			}
			continue
		}
		var numbers []string
		for _, f := range done.Written {
			number, _, _ := strings.Cut(filepath.Base(f.Path), "_")
			numbers = append(numbers, number)
		}
		if numbers = slices.Compact(numbers); strings.Join(numbers[:2], " ") != c.want || len(numbers) != 7 || !slices.IsSorted(numbers) && numbers[0] != "10" {
			t.Errorf("%q: %q; want %s", c.before, numbers, c.want)
		}
	}
}

// Only goose has migrations in Go.
func TestFormatOfGoFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before string // names of files
		format Format
		want   Format // "" if the user is asked
	}{
		{"00001_a.go 00002_b.go", "", Goose},
		{"20260102030405_a.go", "", Goose},
		{"00001_a.go", GolangMigrate, GolangMigrate}, // as its user says
		{"1_a.up.sql 2_helper.go", "", GolangMigrate},
		{"embed.go", "", GolangMigrate},
		{"00001_a_test.go", "", GolangMigrate},
		{"00001_a.go V2__b.sql", "", ""},
	} {
		files := make(map[string]string)
		for _, name := range strings.Fields(c.before) {
			files[name] = ""
		}
		o := options(folderOf(t, files))
		o.Format, o.Strategies = c.format, []string{"rowlock"}
		done, err := Copy(t.Context(), o)
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "say which format") {
				t.Errorf("%q: %s files, %v", c.before, done.Format, err)
			}
			continue
		}
		pairs := 0
		for _, f := range done.Written {
			if strings.HasSuffix(f.Path, ".up.sql") {
				pairs++
			}
		}
		if err != nil || done.Format != c.want || (pairs > 0) != (c.want == GolangMigrate) {
			t.Errorf("%q: %s files, of them %d of golang-migrate, %v; want %s", c.before, done.Format, pairs, err, c.want)
		}
	}
}

// A second copy adds what is missing, and nothing else.
func TestCopyAgain(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{GolangMigrate, Goose} {
		o := options(t.TempDir())
		o.Format, o.Strategies = format, []string{"rowlock"}
		first := mustCopy(t, o)
		o.Format, o.Strategies = "", nil
		second := mustCopy(t, o)
		if second.Format != format || !slices.Equal(second.Present, first.Written) {
			t.Errorf("%s: present %v; want %v", second.Format, second.Present, first.Written)
		}
		if len(second.Written)/len(first.Written) != 7 {
			t.Errorf("%d files were added to %d", len(second.Written), len(first.Written))
		}
		before := filesOf(t, o.Dir)
		if third := mustCopy(t, o); len(third.Written) != 0 || len(third.Present) != len(before) || !maps.Equal(filesOf(t, o.Dir), before) {
			t.Errorf("the third time: %+v", third)
		}
		// With other names it is another set.
		o.Names.Prefix = "other_"
		if fourth := mustCopy(t, o); len(fourth.Written) != len(before) || len(fourth.Present) != 0 {
			t.Errorf("with other names: %d written, %d present", len(fourth.Written), len(fourth.Present))
		}
	}
}

func TestCopyRefuses(t *testing.T) {
	t.Parallel()
	mysqlCopy := map[string]string{"1_a.up.sql": "-- ours\n-- exclusive: rowlock_lock for mysql, version 1\nCREATE TABLE a (b INT);"}
	for name, c := range map[string]struct {
		before map[string]string
		change func(*CopyOptions)
		want   string
	}{
		"no folder":        {nil, func(o *CopyOptions) { o.Dir = filepath.Join(o.Dir, "typo") }, "does not exist: make it"},
		"empty path":       {nil, func(o *CopyOptions) { o.Dir = "" }, "the folder is not given"},
		"a file":           {map[string]string{"f": ""}, func(o *CopyOptions) { o.Dir = filepath.Join(o.Dir, "f") }, "cannot be read"},
		"no dialect":       {nil, func(o *CopyOptions) { o.Dialect = 0 }, "the dialect is not given"},
		"strategy":         {nil, func(o *CopyOptions) { o.Strategies = []string{"fence"} }, `no strategy "fence"`},
		"format":           {nil, func(o *CopyOptions) { o.Format = "flyway" }, `no format "flyway"`},
		"numbering":        {nil, func(o *CopyOptions) { o.Numbering = "random" }, `no numbering "random"`},
		"prefix":           {nil, func(o *CopyOptions) { o.Names.Prefix = "a;" }, "semicolon"},
		"schema":           {nil, func(o *CopyOptions) { o.Names.Schema = `a"` }, "quote"},
		"name for goose":   {nil, func(o *CopyOptions) { o.Format, o.Names.Prefix = Goose, "+goose" }, "annotations"},
		"other files":      {map[string]string{"V1__a.sql": ""}, nil, "none that begins with the number"},
		"both formats":     {map[string]string{"1_a.up.sql": "", "2_a.sql": ""}, nil, "say which format is meant"},
		"the other format": {map[string]string{"1_a.up.sql": ""}, func(o *CopyOptions) { o.Format = Goose }, "cannot share a folder"},
		"the one format":   {map[string]string{"1_a.sql": ""}, func(o *CopyOptions) { o.Format = GolangMigrate }, "cannot share a folder"},
		"another dialect":  {mysqlCopy, nil, "is for mysql: a folder of migrations is for one dialect"},
	} {
		o := options(folderOf(t, c.before))
		dir := o.Dir
		if c.change != nil {
			c.change(&o)
		}
		done, err := Copy(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(done.Written) != 0 {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
		if got := filesOf(t, dir); !maps.Equal(got, c.before) && len(got)+len(c.before) > 0 {
			t.Errorf("%s: left %q", name, slices.Collect(maps.Keys(got)))
		}
	}
	// Files that are no migrations do not matter if the format is said.
	o := options(folderOf(t, map[string]string{"seed.sql": ""}))
	o.Format = Goose
	if done := mustCopy(t, o); len(done.Written) != 8 {
		t.Errorf("beside seed.sql: %+v", done)
	}
}

// cutOff ends when it has been asked a number of times.
type cutOff struct {
	context.Context
	left int
}

func (c *cutOff) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// However far a copy has come when it is interrupted, it leaves nothing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	before := map[string]string{"1_a.up.sql": "x"}
	o := options(folderOf(t, before))
	for asked := 0; ; asked++ {
		done, err := Copy(&cutOff{t.Context(), asked}, o)
		if err == nil {
			if len(done.Written) != 16 || asked != 32 {
				t.Errorf("after %d questions %d files were written", asked, len(done.Written))
			}
			return
		}
		if !strings.Contains(err.Error(), "nothing was copied") || len(done.Written) != 0 {
			t.Fatalf("%+v, %v", done, err)
		}
		if got := filesOf(t, o.Dir); !maps.Equal(got, before) {
			t.Fatalf("interrupted at %d: left %q", asked, slices.Sorted(maps.Keys(got)))
		}
	}
}

// The files appear whole, also on file systems without links; and when one
// cannot be written, none is there.
func TestWrite(t *testing.T) {
	t.Parallel()
	files := func(dir string) (list []content) {
		for i := range 3 {
			list = append(list, content{File{"t", filepath.Join(dir, fmt.Sprint(i))}, fmt.Sprint("text ", i)})
		}
		return list
	}
	noLinks := func(string, string) error { return errors.ErrUnsupported }

	for name, link := range map[string]func(string, string) error{"links": os.Link, "no links": noLinks} {
		dir := t.TempDir()
		if err := write(t.Context(), files(dir), link); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := filesOf(t, dir); len(got) != 3 || got["2"] != "text 2" {
			t.Errorf("%s: %v", name, got)
		}
		// Somebody else has made one of the files.
		dir = folderOf(t, map[string]string{"1": "of somebody else"})
		err := write(t.Context(), files(dir), link)
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "another process") {
			t.Errorf("%s: %v", name, err)
		}
		if got := filesOf(t, dir); len(got) != 1 || got["1"] != "of somebody else" {
			t.Errorf("%s: left %v", name, got)
		}
	}
	// Two folders, the second of which does not exist: the first stays as it was.
	dir := t.TempDir()
	err := write(t.Context(), append(files(dir), files(filepath.Join(dir, "missing"))...), os.Link)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "cannot be written to") || len(namesOf(t, dir)) != 0 {
		t.Errorf("%v, left %q", err, namesOf(t, dir))
	}
	// The third file's place goes away after the first two were made.
	n := 0
	err = write(t.Context(), files(dir), func(from, to string) error {
		if n++; n < 3 {
			return os.Link(from, to)
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Error(err)
		}
		return errors.New("broken")
	})
	if err == nil || !slices.Equal(namesOfDirs(t, dir), []string{"2/"}) {
		t.Errorf("%v, left %q", err, namesOfDirs(t, dir))
	}
}

func namesOfDirs(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	return names
}
