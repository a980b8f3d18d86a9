// Package migrations holds the tables of the strategies as plain SQL files, up
// and down, one concern per file, to be copied into an application's own
// migrations and numbered on from there: by hand, or by the command
//
//	exclusive migrations copy
//
// They are in golang-migrate's format, which can also run them from FS with a
// version table of their own (x-migrations-table). docs/migrations.md shows both.
//
// Each file is one statement, as MySQL drivers want it, and has one semicolon,
// at its end: tools that cut a file at each one cut none of these.
//
// The files hold the names with the default prefix "exclusive_" and without a
// schema; see the Prefix and Schema fields of the strategies' configurations.
//
// The SQL is the documentation of the schema: each file says why it is as it
// is, and what privileges the application's role needs, no more. The first
// line names the template and its version: what a file makes is changed by
// another file, and never in a file that has been released.
//
// This package links the standard library only.
package migrations

import "embed"

// FS holds <dialect>/NNNN_<strategy>_<object>.{up,down}.sql. The dialects are
// postgres, mysql, mariadb and sqlite. Beside them is
// <dialect>/casupdate_columns.sql.example, to write a migration of your own
// table from; golang-migrate does not see it.
//
//go:embed postgres mysql mariadb sqlite
var FS embed.FS
