package mysqldb

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// render puts args in place of the question marks of query. The driver would
// prepare, run and close a statement for each call with arguments, which is two
// round trips, unless the DSN says interpolateParams, which is not ours to say.
//
// Values are written such that no setting of the server changes what they
// mean: integers in decimal, bytes as hexadecimal literals, strings as the
// same with their character set. There is nothing to escape, so it does not
// matter whether a backslash escapes (NO_BACKSLASH_ESCAPES), what a double quote
// is (ANSI_QUOTES), or what the connection's character set is.
//
// query is text of this module. What different servers or settings would read
// differently is refused: backslashes in quotes, comments that are executed,
// and two dashes that are no comment.
func render(query string, args []any) (string, error) {
	size := len(query)
	for _, arg := range args {
		switch v := arg.(type) {
		case string:
			size += 2*len(v) + len("  _utf8mb4 x''")
		case []byte:
			size += 2*len(v) + len("  x''")
		default:
			size += 24 // fits every int64, and NULL
		}
	}
	buf := make([]byte, 0, size)
	rest := args
	for i := 0; i < len(query); {
		end, err := skip(query, i)
		if err != nil {
			return "", err
		}
		if end > i {
			buf = append(buf, query[i:end]...)
			i = end
			continue
		}
		if query[i] != '?' {
			buf = append(buf, query[i])
			i++
			continue
		}
		if len(rest) == 0 {
			return "", fmt.Errorf("mysqldb: more placeholders than the %d arguments", len(args))
		}
		if buf, err = appendValue(buf, rest[0]); err != nil {
			return "", err
		}
		rest = rest[1:]
		i++
	}
	if len(rest) > 0 {
		return "", fmt.Errorf("mysqldb: %d arguments for %d placeholders", len(args), len(args)-len(rest))
	}
	return string(buf), nil
}

// skip returns the end of the quoted text or comment that begins at i, or i if
// none does.
func skip(query string, i int) (int, error) {
	switch c := query[i]; c {
	case '\'', '"', '`':
		length := strings.IndexByte(query[i+1:], c)
		if length < 0 {
			return 0, errors.New("mysqldb: a quote is not closed")
		}
		// A doubled quote is the end of one text and the begin of another.
		end := i + 1 + length + 1
		if c != '`' && strings.IndexByte(query[i:end], '\\') >= 0 {
			return 0, errors.New("mysqldb: a backslash in quotes: its meaning depends on sql_mode")
		}
		return end, nil
	case '#':
		return endOfLine(query, i), nil
	case '-':
		if !strings.HasPrefix(query[i:], "--") {
			return i, nil
		}
		// Two dashes begin a comment only in front of white space (manual,
		// "Comments"), which a value in their place would bring.
		if len(query) > i+2 && query[i+2] > ' ' {
			return 0, errors.New("mysqldb: two dashes without a space behind them")
		}
		return endOfLine(query, i), nil
	case '/':
		if !strings.HasPrefix(query[i:], "/*") {
			return i, nil
		}
		body := query[i+2:]
		if strings.HasPrefix(body, "!") || strings.HasPrefix(body, "M!") {
			return 0, errors.New("mysqldb: a comment that some servers execute")
		}
		length := strings.Index(body, "*/")
		if length < 0 {
			return 0, errors.New("mysqldb: a comment is not closed")
		}
		return i + 2 + length + 2, nil
	}
	return i, nil
}

func endOfLine(query string, i int) int {
	if length := strings.IndexByte(query[i:], '\n'); length >= 0 {
		return i + length + 1
	}
	return len(query)
}

// appendValue writes a value between spaces, so that it cannot join the text
// beside it: "-?" with a negative number, "x?" with a string.
func appendValue(buf []byte, arg any) ([]byte, error) {
	buf = append(buf, ' ')
	switch v := arg.(type) {
	case nil:
		buf = append(buf, "NULL"...)
	case int64:
		buf = strconv.AppendInt(buf, v, 10)
	case string:
		buf = append(buf, "_utf8mb4 x'"...)
		buf = hex.AppendEncode(buf, []byte(v))
		buf = append(buf, '\'')
	case []byte:
		if v == nil {
			buf = append(buf, "NULL"...)
			break
		}
		buf = append(buf, "x'"...)
		buf = hex.AppendEncode(buf, v)
		buf = append(buf, '\'')
	default:
		return nil, fmt.Errorf("mysqldb: an argument is of type %T; int64, string, []byte and nil are allowed", arg)
	}
	return append(buf, ' '), nil
}
