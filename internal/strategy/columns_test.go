package strategy

import (
	"slices"
	"testing"
)

func TestEnumValues(t *testing.T) {
	for full, want := range map[string][]string{
		`enum('a')`:                          {"a"},
		`enum('a','B c','')`:                 {"a", "B c", ""},
		`enum('it''s','''x''','a'',''b')`:    {"it's", "'x'", "a','b"},
		`enum('a\nb','c\\d','e)','\0','\r')`: {"a\nb", `c\d`, "e)", "\x00", "\r"},
	} {
		if got := enumValues(full); !slices.Equal(got, want) {
			t.Errorf("%s: %q; want %q", full, got, want)
		}
	}
}
