package mysqldb

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestRender(t *testing.T) {
	tests := []struct {
		query string
		args  []any
		want  string
	}{
		{"SELECT 1", nil, "SELECT 1"},
		{"SELECT ?", []any{nil}, "SELECT  NULL "},
		{"SELECT ?", []any{[]byte(nil)}, "SELECT  NULL "},
		{"SELECT ?", []any{[]byte{}}, "SELECT  x'' "},
		{"SELECT ?", []any{[]byte{0, 0xff, '\''}}, "SELECT  x'00ff27' "},
		{"SELECT ?", []any{""}, "SELECT  _utf8mb4 x'' "},
		{"SELECT ?", []any{"é'\\"}, "SELECT  _utf8mb4 x'c3a9275c' "},
		{"SELECT ?,?", []any{int64(7), int64(math.MinInt64)}, "SELECT  7 , -9223372036854775808 "},
		// A value never joins what stands beside it.
		{"SELECT 1 -?", []any{int64(-5)}, "SELECT 1 - -5 "},
		{"SELECT?AS a", []any{int64(5)}, "SELECT 5 AS a"},
		// What is no placeholder.
		{"SELECT '?', \"?\", `?`, ?", []any{int64(1)}, "SELECT '?', \"?\", `?`,  1 "},
		{"SELECT 'it''s ?', ?", []any{int64(1)}, "SELECT 'it''s ?',  1 "},
		{"SELECT `\\`, ?", []any{int64(1)}, "SELECT `\\`,  1 "},
		{"SELECT /* ? */ ? -- ?\n, ? # ?", []any{int64(1), int64(2)}, "SELECT /* ? */  1  -- ?\n,  2  # ?"},
		{"SELECT /*+ NO_ICP(t) */ ? --", []any{int64(1)}, "SELECT /*+ NO_ICP(t) */  1  --"},
		{"SELECT /*/ ? */ ?", []any{int64(1)}, "SELECT /*/ ? */  1 "},
	}
	for _, test := range tests {
		got, err := render(test.query, test.args)
		if err != nil || got != test.want {
			t.Errorf("%q with %v: %q, %v; want %q", test.query, test.args, got, err, test.want)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	tests := []struct {
		query string
		args  []any
		want  string
	}{
		{"SELECT ?", nil, "more placeholders than the 0 arguments"},
		{"SELECT ?, ?", []any{int64(1)}, "more placeholders than the 1 arguments"},
		{"SELECT 1", []any{int64(1)}, "1 arguments for 0 placeholders"},
		{"SELECT '?'", []any{int64(1)}, "1 arguments for 0 placeholders"},
		{"SELECT ?", []any{1}, "type int;"},
		{"SELECT ?", []any{true}, "type bool;"},
		{"SELECT ?", []any{1.5}, "type float64;"},
		{"SELECT ?", []any{time.Unix(0, 0)}, "type time.Time;"},
		{"SELECT ?", []any{struct{ Password string }{"secret"}}, "type struct { Password string };"},
		{"SELECT 'a", nil, "quote is not closed"},
		{"SELECT \"a", nil, "quote is not closed"},
		{"SELECT `a", nil, "quote is not closed"},
		{"SELECT /* a", nil, "comment is not closed"},
		{"SELECT /*/", nil, "comment is not closed"},
		{"SELECT '\\', ?", []any{int64(1)}, "backslash"},
		{"SELECT /*! ? */", []any{int64(1)}, "execute"},
		{"SELECT /*M! ? */", []any{int64(1)}, "execute"},
		{"SELECT 1--?", []any{int64(1)}, "two dashes"},
	}
	for _, test := range tests {
		got, err := render(test.query, test.args)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %q, %v; want an error about %q", test.query, got, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error shows a value: %v", test.query, err)
		}
	}
}

// token reads SQL the way render claims to, by other means.
var token = regexp.MustCompile("(?s)'[^']*'|\"[^\"]*\"|`[^`]*`|#[^\n]*|--[^\n]*|/\\*.*?\\*/|.")

func FuzzRender(f *testing.F) {
	f.Add("SELECT ?, '?' -- ?\n", "text", []byte("bytes"), int64(-1))
	f.Add("INSERT INTO `a?` VALUES (?, ?, ?) /* ? */", "é", []byte{0}, int64(1))
	f.Add("SELECT 1 -?-?", "", []byte(nil), int64(-1))
	f.Add("SELECT '\\'?' # ?", "'", []byte("\\'"), int64(0))
	f.Fuzz(func(t *testing.T, query, text string, bytes []byte, number int64) {
		// As many arguments as the other reading finds placeholders.
		values := []any{text, bytes, number, nil}
		var args []any
		for _, part := range token.FindAllString(query, -1) {
			if part == "?" {
				args = append(args, values[len(args)%len(values)])
			}
		}
		got, err := render(query, args)
		if err != nil {
			if strings.Contains(err.Error(), "arguments") {
				t.Fatalf("%q has %d placeholders: %v", query, len(args), err)
			}
			return
		}
		// Nothing is left to replace, and no value has become something else:
		// the tokens outside of it are those of the query.
		if again, err := render(got, nil); err != nil || again != got {
			t.Fatalf("%q became %q, which reads %q, %v", query, got, again, err)
		}
		var want strings.Builder
		n := 0
		for _, part := range token.FindAllString(query, -1) {
			if part == "?" {
				value, err := appendValue(nil, args[n])
				if err != nil {
					t.Fatal(err)
				}
				part = string(value)
				n++
			}
			want.WriteString(part)
		}
		if got != want.String() {
			t.Fatalf("%q became %q, want %q", query, got, want.String())
		}
		if _, err := render(query, append(args, nil)); err == nil {
			t.Fatalf("%q took one argument too many", query)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	query := "UPDATE `exclusive_lease` SET expires_at = ? WHERE lease_key = ? AND grant_id = ? AND token = ?"
	args := []any{int64(1764424800000000), []byte("report/2026-11-29"), strings.Repeat("x", 26), int64(42)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := render(query, args); err != nil {
			b.Fatal(err)
		}
	}
}
