package strategy

import (
	"math"
	"slices"
	"strings"
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

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		got         column
		least, most int64 // 0: it holds no integer
	}{
		{column{base: "tinyint", full: "tinyint(4)", digits: -1}, -128, 127},
		{column{base: "tinyint", full: "tinyint(3) unsigned", digits: -1}, 0, 255},
		{column{base: "mediumint", full: "mediumint unsigned zerofill", digits: -1}, 0, 1<<24 - 1},
		{column{base: "int2", full: "smallint", digits: -1}, -1 << 15, 1<<15 - 1},
		{column{base: "int", full: "int", digits: -1}, math.MinInt32, math.MaxInt32},
		{column{base: "int", full: "int unsigned", digits: -1}, 0, math.MaxUint32},
		{column{base: "decimal", full: "decimal(3,0)", digits: 3}, -999, 999},
		{column{base: "decimal", full: "decimal(3,0) unsigned", digits: 3}, 0, 999},
		{column{base: "varchar", full: "varchar(20)", digits: -1}, 0, 0},
		{column{base: "float4", full: "real", digits: -1}, 0, 0},
	} {
		if c.most == 0 {
			if c.got.holds(1) {
				t.Errorf("%s holds 1", c.got.full)
			}
			continue
		}
		if !c.got.holds(c.least) || !c.got.holds(c.most) || c.got.holds(c.least-1) || c.got.holds(c.most+1) {
			t.Errorf("%s does not end at %d and %d", c.got.full, c.least, c.most)
		}
	}
	for _, got := range []column{
		{base: "bigint", full: "bigint(20)", digits: -1}, {base: "bigint", full: "bigint unsigned", digits: -1}, {base: "int8", full: "bigint", digits: 19},
	} {
		if !got.holds(math.MaxInt64) || got.holds(math.MinInt64) == strings.Contains(got.full, "unsigned") {
			t.Errorf("%s does not hold what it does", got.full)
		}
	}
}
