package db

import (
	"strconv"
	"strings"
)

// Bind writes the question marks of query as the dialect's placeholders, except
// those in quoted names.
func (d Dialect) Bind(query string) string {
	if d != Postgres {
		return query
	}
	var b strings.Builder
	n, quoted := 0, false
	for _, c := range query {
		switch {
		case c == '?' && !quoted:
			n++
			b.WriteString("$" + strconv.Itoa(n))
			continue
		case c == '"':
			quoted = !quoted
		}
		b.WriteRune(c)
	}
	return b.String()
}
