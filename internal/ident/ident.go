// Package ident checks and quotes SQL identifiers.
package ident

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxBytes is PostgreSQL's limit, the smallest of all dialects (MySQL and
// MariaDB: 64 characters). PostgreSQL would cut a longer one silently.
const maxBytes = 63

// Check says why name cannot be an identifier. Any name is allowed that every
// server takes when quoted, except one that has a quote or a control
// character: that is a mistake or an attack.
func Check(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > maxBytes:
		return fmt.Errorf("%s %q has %d bytes; %d are allowed", what, name[:maxBytes]+"…", len(name), maxBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s is not valid UTF-8", what)
	case strings.ContainsAny(name, "\"'`;\\"):
		return fmt.Errorf("%s %q has a quote, a semicolon or a backslash", what, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s %q has a control character", what, name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("%s %q begins or ends with white space", what, name)
	}
	return nil
}

// Quote quotes a checked name with the dialect's quote character, qualified by
// schema unless that is empty.
func Quote(quote string, schema, name string) string {
	if schema == "" {
		return quote + name + quote
	}
	return quote + schema + quote + "." + quote + name + quote
}
