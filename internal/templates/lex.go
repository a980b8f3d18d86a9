package templates

import (
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive/internal/db"
)

// kind is the kind of a token of SQL.
type kind uint8

const (
	space   kind = iota // white space
	comment             // from -- to the end of the line, without that
	word                // a key word, an unquoted name, a number
	quoted              // a string or a quoted name, with its quotes
	symbol              // any other character
)

type token struct {
	kind kind
	text string
}

// lex cuts SQL into tokens, which are the whole text when they are joined. It
// knows what the templates use, and what people may add to a copy: in block
// comments it sees symbols and words.
func lex(sql string) []token {
	var tokens []token
	for sql != "" {
		k, n := symbol, 1
		switch c := sql[0]; {
		case strings.HasPrefix(sql, "--"):
			k, n = comment, length(sql, func(c byte) bool { return c != '\n' })
		case c == '\'' || c == '"' || c == '`':
			// A doubled quote makes two tokens, with nothing between them.
			k, n = quoted, 1+length(sql[1:], func(b byte) bool { return b != c })
			n = min(n+1, len(sql)) // the closing one
		case isSpace(c):
			k, n = space, length(sql, isSpace)
		case isWord(c):
			k, n = word, length(sql, isWord)
		}
		tokens = append(tokens, token{k, sql[:n]})
		sql = sql[n:]
	}
	return tokens
}

// length counts the bytes at the beginning of s that are of a kind.
func length(s string, is func(byte) bool) int {
	for i := range len(s) {
		if !is(s[i]) {
			return i
		}
	}
	return len(s)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// sameCode reports whether got says what the template does. MySQL and MariaDB take
// names of another case for other tables, depending on the machine; the key words of
// templates are in upper case, and their names are not.
func (t *Template) sameCode(want, got string) bool {
	if !slices.Equal(code(want), code(got)) {
		return false
	}
	if t.Dialect != db.MySQL && t.Dialect != db.MariaDB {
		return true
	}
	names := func(sql string) (list []string) {
		for _, t := range lex(sql) {
			if t.kind == word {
				list = append(list, t.text)
			}
		}
		return list
	}
	there := names(got)
	for i, name := range names(want) {
		if name != strings.ToUpper(name) && name != there[i] {
			return false
		}
	}
	return true
}

// code is what a server makes of SQL: its tokens without comments and white
// space. The case of key words does not count.
func code(sql string) []string {
	var list []string
	for _, t := range lex(sql) {
		switch t.kind {
		case word:
			list = append(list, strings.ToLower(t.text))
		case quoted, symbol:
			list = append(list, t.text)
		}
	}
	return list
}
