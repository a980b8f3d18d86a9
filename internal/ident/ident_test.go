package ident_test

import (
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/ident"
)

func TestCheck(t *testing.T) {
	for _, name := range []string{"lease", "Tenant-1", "order", "a b", "été", "$x", strings.Repeat("n", 63)} {
		if err := ident.Check("name", name); err != nil {
			t.Errorf("%q is refused: %v", name, err)
		}
	}
	for _, name := range []string{"", `a"b`, "a`b", "a'b", "a;b", `a\b`, "a\x00", "a\n", "\xff", " a", "a ", strings.Repeat("n", 64), strings.Repeat("é", 32)} {
		if err := ident.Check("name", name); err == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// Whatever is accepted stays one identifier when it is quoted.
func FuzzQuote(f *testing.F) {
	f.Add(`a"; DROP TABLE x; --`, "t")
	f.Add("a`b", "t'")
	f.Fuzz(func(t *testing.T, schema, name string) {
		if ident.Check("schema", schema) != nil || ident.Check("name", name) != nil {
			return
		}
		for _, quote := range []string{`"`, "`"} {
			q := ident.Quote(quote, schema, name)
			if strings.Count(q, quote) != 4 || strings.ContainsAny(q, "\x00;\\'") {
				t.Errorf("%q and %q became %q", schema, name, q)
			}
		}
	})
}
