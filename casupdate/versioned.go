package casupdate

import (
	"context"
	"errors"
	"fmt"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// DefaultVersionColumn is VersionConfig.VersionColumn when that is empty.
const DefaultVersionColumn = "version"

// VersionConfig configures Versioned. Fields that Config has too mean the same.
type VersionConfig struct {
	Schema string
	Table  string
	Key    Key
	// VersionColumn holds integers of 32 bits or more, not NULL. Empty: DefaultVersionColumn.
	VersionColumn string
}

// Versioned updates rows that are still as they were read: each update names
// the version that it was made for, and raises it. It is safe for concurrent
// use.
type Versioned[Tx any] struct {
	key    Key
	taken  []string
	server *strategy.Server[Tx, *versionDialect]
}

// versionDialect is the SQL of a Versioned on one kind of server.
type versionDialect struct {
	*builder
	readS, lockedReadS statement
}

// VersionError is the version that a row was found with, when that is why an
// update was refused. errors.As finds it.
type VersionError struct{ Version int64 }

func (e *VersionError) Error() string { return fmt.Sprintf("the row has version %d", e.Version) }

// NewVersioned makes a Versioned. It does no I/O; the first call asks once for the
// version column's type, except on SQLite.
func NewVersioned[Tx any](d db.DB[Tx], cfg VersionConfig) (*Versioned[Tx], error) {
	if err := strategy.ValidAdapter("casupdate", d); err != nil {
		return nil, err
	}
	if len(cfg.Key.columns) == 0 && cfg.Key.separator == "" {
		cfg.Key = Text(DefaultKeyColumn)
	}
	cfg.VersionColumn = strategy.Default(cfg.VersionColumn, DefaultVersionColumn)
	err := strategy.InvalidConfig("casupdate",
		strategy.ValidTable(cfg.Schema, cfg.Table), cfg.Key.check(), ident.Check("VersionColumn", cfg.VersionColumn))
	if err != nil {
		return nil, err
	}
	v := &Versioned[Tx]{key: cfg.Key, taken: []string{cfg.VersionColumn}}
	for _, c := range cfg.Key.columns {
		v.taken = append(v.taken, c.name)
	}
	texts := func(d db.Dialect) *versionDialect {
		b := newBuilder(d, cfg.Schema, cfg.Table, cfg.Key)
		b.name("version", cfg.VersionColumn)
		return &versionDialect{b, b.statement(versionText), b.statement(b.texts.lockedVersion)}
	}
	v.server = strategy.NewServer(d, "casupdate", texts, nil)
	v.server.Mend = "VersionConfig must name the table and the columns as they are"
	v.server.Columns = strategy.Columns{Schema: cfg.Schema, List: []strategy.Column{versions(cfg.Table, cfg.VersionColumn)}}
	return v, nil
}

// Update sets columns of the row, which must have the given version, in a
// statement of its own, and returns the new version: the given one plus 1. If
// the row has another version nothing is changed: ErrConflict with a
// *VersionError; read the row again. ErrNoRow if there is no such row.
//
// If its answer is lost it is ErrOutcomeUnknown, and not repeated: a row with
// the next version may be somebody else's. After an error of ctx it may have
// happened or may happen yet.
func (v *Versioned[Tx]) Update(ctx context.Context, key string, version int64, set Set) (int64, error) {
	c, list, err := v.arguments(key, version, set)
	if err != nil {
		return 0, err
	}
	d, err := v.server.OwnSQL(ctx)
	if err != nil {
		return 0, v.server.Fail(ctx, "update", key, err)
	}
	var ok bool
	err = db.Retry(ctx, sendOnce{v.server.DB}, func(ctx context.Context) error {
		var err error
		ok, err = d.update(ctx, v.server.DB, c, version, list)
		return err
	})
	switch {
	case err != nil && ctx.Err() == nil && db.MayHaveRun(v.server.DB, err):
		return 0, &exclusive.Error{Op: "update", Key: key, Kind: exclusive.ErrOutcomeUnknown, Hint: "read the row again", Err: err}
	case err != nil:
		return 0, v.server.Fail(ctx, "update", key, err)
	case ok:
		return version + 1, nil
	}
	return 0, v.why(ctx, d, v.server.DB, c, key, version, &d.readS)
}

// UpdateTx is Update in the caller's transaction. After ErrConflict without a
// *VersionError, or ErrUnavailable, roll tx back.
func (v *Versioned[Tx]) UpdateTx(ctx context.Context, tx Tx, key string, version int64, set Set) (int64, error) {
	c, list, err := v.arguments(key, version, set)
	if err != nil {
		return 0, err
	}
	d, r, err := v.server.Within(ctx, "update", key, tx)
	if err != nil {
		return 0, err
	}
	ok, err := d.update(ctx, r, c, version, list)
	switch {
	case err != nil:
		return 0, v.server.Fail(ctx, "update", key, err)
	case ok:
		return version + 1, nil
	}
	// A locking read: a plain one could show an old snapshot.
	return 0, v.why(ctx, d, r, c, key, version, &d.lockedReadS)
}

func (v *Versioned[Tx]) arguments(key string, version int64, set Set) (call, []assignment, error) {
	if err := exclusive.ValidateKey("update", key); err != nil {
		return call{}, nil, err
	}
	values, kerr := v.key.parse(key)
	list, serr := set.assignments("Set", v.taken)
	err := errors.Join(kerr, serr)
	if version < 0 {
		err = errors.Join(err, fmt.Errorf("the version is %d; it must not be negative", version))
	}
	if err != nil {
		return call{}, nil, &exclusive.Error{Op: "update", Key: key, Kind: exclusive.ErrInvalid, Err: err}
	}
	return call{key: values}, list, nil
}

func (d *versionDialect) update(ctx context.Context, r db.Runner, c call, version int64, set []assignment) (bool, error) {
	b := d.clone()
	b.params["version"] = version
	b.assign("set", set)
	s := b.statement(updateText)
	return strategy.Changed(ctx, r, s.text, s.bind(c, b.texts.bytesAsText)...)
}

// why says why a row was not updated.
func (v *Versioned[Tx]) why(ctx context.Context, d *versionDialect, r db.Runner, c call, key string, version int64, read *statement) error {
	var found int64
	ok, err := strategy.One(ctx, r, read.text, read.bind(c, d.texts.bytesAsText), func(scan db.Scan) error { return scan(&found) })
	e := &exclusive.Error{Op: "update", Key: key, Kind: exclusive.ErrConflict}
	switch {
	case err != nil:
		return v.server.Fail(ctx, "update", key, err)
	case !ok:
		e.Kind = exclusive.ErrNoRow
	case found == version:
		e.Hint = "the row was changed while it was looked at"
	default:
		e.Err = &VersionError{found}
	}
	return e
}
