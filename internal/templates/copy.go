package templates

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Selection says which templates are meant, and with which names.
type Selection struct {
	Dialect    db.Dialect
	Strategies []string // none: all
	Names      Names
}

// templates checks the selection and returns what it selects.
func (s Selection) templates() ([]Template, error) {
	list, err := Of(s.Dialect, s.Strategies)
	return list, errors.Join(err, s.Names.Validate())
}

// CopyOptions say what Copy copies, and how.
type CopyOptions struct {
	Selection
	Dir       string
	Format    Format    // empty: that of the folder's files, or golang-migrate
	Numbering Numbering // empty: that of the folder's files, or sequential
	Now       time.Time // for timestamps
}

// Validate finds what is wrong before anything is read.
func (o CopyOptions) Validate() error {
	_, err := o.templates()
	errs := []error{err}
	if o.Dir == "" {
		errs = append(errs, errors.New("the folder is not given"))
	}
	if !slices.Contains([]Format{"", GolangMigrate, Goose}, o.Format) {
		errs = append(errs, fmt.Errorf("there is no format %q; it is %s or %s", o.Format, GolangMigrate, Goose))
	}
	if !slices.Contains([]Numbering{"", Sequential, Timestamp}, o.Numbering) {
		errs = append(errs, fmt.Errorf("there is no numbering %q; it is %s or %s", o.Numbering, Sequential, Timestamp))
	}
	return errors.Join(errs...)
}

// File is a file in a folder of migrations.
type File struct {
	Template string `json:"template"`
	Path     string `json:"path"`
}

// Copied is what Copy has done.
type Copied struct {
	Format  Format `json:"format"`
	Written []File `json:"written"`
	// Present are the files that were there before, and were left alone.
	Present []File `json:"present"`
}

// Copy copies templates into a folder of migrations, after what is there. What
// the folder has already, with the same names, is left as it is. Nothing is
// overwritten, and either all is written or nothing.
func Copy(ctx context.Context, o CopyOptions) (Copied, error) {
	if err := o.Validate(); err != nil {
		return Copied{}, err
	}
	list, err := o.templates()
	if err != nil {
		return Copied{}, err
	}
	f, err := scan(o.Dir, o.Format)
	if err != nil {
		return Copied{}, err
	}
	if f.format == "" {
		f.format = GolangMigrate
	}
	done := Copied{Format: f.format, Written: []File{}, Present: []File{}}
	for _, s := range f.sets {
		if s.dialect != o.Dialect.String() {
			return done, fmt.Errorf("%s is for %s: a folder of migrations is for one dialect", s.path(), s.dialect)
		}
	}
	list = slices.DeleteFunc(list, func(t Template) bool {
		s := f.find(t, o.Names)
		if s == nil {
			return false
		}
		for _, path := range slices.Compact([]string{s.up, s.down}) {
			if path != "" {
				done.Present = append(done.Present, File{t.Name, path})
			}
		}
		return true
	})
	slices.SortFunc(done.Present, byPath)
	next := f.numbers(o.Numbering, len(list), o.Now)
	var files []content
	for _, t := range list {
		base := filepath.Join(o.Dir, next()+"_exclusive_"+t.Name)
		made, err := t.files(f.format, o.Names)
		if err != nil {
			return done, err
		}
		for suffix, text := range made {
			files = append(files, content{File{t.Name, base + suffix}, text})
		}
	}
	slices.SortFunc(files, func(a, b content) int { return byPath(a.File, b.File) })
	if err := write(ctx, files, os.Link); err != nil {
		return done, err
	}
	for _, c := range files {
		done.Written = append(done.Written, c.File)
	}
	return done, nil
}

func byPath(a, b File) int { return strings.Compare(a.Path, b.Path) }

// files are the contents of a template's files, by what their names end with.
func (t *Template) files(format Format, n Names) (map[string]string, error) {
	head := t.header(n).String() + "\n"
	up, down := t.Up(n), t.Down(n)
	if format == GolangMigrate {
		return map[string]string{".up.sql": head + up, ".down.sql": head + down}, nil
	}
	if strings.Contains(head+up+down, "+goose") {
		return nil, errors.New("goose would take the name for one of its annotations")
	}
	// Between these goose does not look for the end of the statement, whatever
	// is in a name.
	const begin, end = "-- +goose StatementBegin\n", "-- +goose StatementEnd\n"
	return map[string]string{".sql": head +
		"-- +goose Up\n" + begin + up + end + "\n" +
		"-- +goose Down\n" + begin + down + end}, nil
}

type content struct {
	File
	text string
}

// write makes the files, or none of them. They get their names when all have
// been written, and link does not overwrite.
func write(ctx context.Context, files []content, link func(from, to string) error) (err error) {
	var made, temporary []string
	defer func() {
		if err != nil {
			temporary = append(temporary, made...)
		}
		for _, path := range temporary {
			if rerr := os.Remove(path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("remove this file: %w", rerr))
			}
		}
	}()
	for _, c := range files {
		if err := interrupted(ctx); err != nil {
			return err
		}
		path := filepath.Join(filepath.Dir(c.Path), ".exclusive-"+rand.Text()+".tmp")
		temporary = append(temporary, path)
		if err := create(path, c.text); err != nil {
			return fmt.Errorf("the folder cannot be written to, nothing was copied: %w", err)
		}
	}
	for i, c := range files {
		if err := interrupted(ctx); err != nil {
			return err
		}
		err := link(temporary[i], c.Path)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			err = create(c.Path, c.text) // a file system without links
		}
		if err == nil || !errors.Is(err, fs.ErrExist) {
			made = append(made, c.Path)
		}
		switch {
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("nothing was copied: another process has just made files of the same names, look at them and try again: %w", err)
		case err != nil:
			return fmt.Errorf("the folder cannot be written to, nothing was copied: %w", err)
		}
	}
	return nil
}

func interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("nothing was copied: %w", context.Cause(ctx))
	}
	return nil
}

// create writes a new file.
func create(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // the umask's
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
