package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

// place is where the demo is played.
type place struct {
	name string
	open func(context.Context) (*target.Open, func() error, error) // the function tidies up, after the pool was closed
	hide func(error) error                                         // removes secrets from an error's text
}

// sqliteIn is a SQLite database in a new directory under dir.
func sqliteIn(dir string) place {
	return place{"SQLite", func(ctx context.Context) (_ *target.Open, _ func() error, err error) {
		tmp, err := os.MkdirTemp(dir, "exclusive-demo-")
		if err != nil {
			return nil, nil, err
		}
		remove := func() error { return os.RemoveAll(tmp) }
		defer func() {
			if err != nil {
				err = errors.Join(err, remove())
			}
		}()
		// The database is thrown away, so a crash of the machine need not be
		// survived, and slow disks do not matter.
		file := target.SQLite(filepath.Join(tmp, "demo.db"), "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
		o, err := file.Open(ctx, 0)
		return o, remove, err
	}, func(err error) error { return err }}
}

// serverAt is the database of a server.
func serverAt(name string, t *target.Target) place {
	return place{name, func(ctx context.Context) (*target.Open, func() error, error) {
		o, err := t.Open(ctx, 0)
		return o, func() error { return nil }, err
	}, t.Hide}
}
