// Package product names the servers that the strategies are made for.
package product

import "strings"

// Product is a kind of server.
type Product struct {
	Kind   string // as db.Dialect has it, and "redis"
	Name   string
	Oldest string // the first version that the SQL and the scripts are made for
}

var all = []Product{
	{"postgres", "PostgreSQL", "12"},
	{"mysql", "MySQL", "8.0.19"},
	{"mariadb", "MariaDB", "10.6"},
	{"sqlite", "SQLite", "3.42"},
	{"redis", "Redis", "7"},
}

// Of returns the product of a kind, which must be one of those.
func Of(kind string) Product {
	for _, p := range all {
		if p.Kind == kind {
			return p
		}
	}
	panic("there is no product of the kind " + kind)
}

// SQL lists those that have SQL.
func SQL() []Product { return all[: len(all)-1 : len(all)-1] }

// Supported lists all with their oldest versions.
func Supported() string {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name + " " + p.Oldest
	}
	return strings.Join(names, ", ") + " (or Valkey)"
}
