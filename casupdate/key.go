package casupdate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/exclusive-go/exclusive/internal/ident"
)

// Key says how the key of a call, which is text, names a row of the table. Use
// Text, Bigint, UUID, UUIDBytes or Composite. The columns together must be
// unique.
//
// A row has one key: other spellings of the same value ("07" for 7, a UUID in
// capitals) are ErrInvalid. So what holds for a key holds for its row, also
// where the key is used as an idempotency key.
type Key struct {
	columns   []keyColumn
	separator string
}

type keyColumn struct {
	name  string
	text  bool // compare byte for byte, whatever the collation
	parse func(part string) (any, error)
}

// Text is a key in a column of text: char, varchar, text, an enum. It is
// compared byte for byte, whatever the column's collation, so that "Report" is
// not the row of "report".
func Text(column string) Key {
	return single(column, true, func(part string) (any, error) { return part, nil })
}

// Bigint is a key in a column of integers: smallint, int, bigint.
func Bigint(column string) Key {
	return single(column, false, func(part string) (any, error) {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != part {
			return nil, fmt.Errorf("%q is not a 64-bit integer in plain decimal digits", part)
		}
		return n, nil
	})
}

// UUID is a key in a column of type uuid, or of text that holds UUIDs in their
// usual form, with small letters.
func UUID(column string) Key {
	return single(column, false, func(part string) (any, error) {
		_, err := parseUUID(part)
		return part, err
	})
}

// UUIDBytes is a UUID in a column of 16 bytes: binary(16), bytea, blob.
func UUIDBytes(column string) Key {
	return single(column, false, func(part string) (any, error) { return parseUUID(part) })
}

func single(column string, text bool, parse func(string) (any, error)) Key {
	return Key{columns: []keyColumn{{column, text, parse}}}
}

func parseUUID(s string) ([]byte, error) {
	bad := fmt.Errorf("%q is not a UUID like 123e4567-e89b-12d3-a456-426614174000, with small letters", s)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' || s != strings.ToLower(s) {
		return nil, bad
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != 16 {
		return nil, bad
	}
	return raw, nil
}

// Composite is a key of several columns. The values are separated by
// separator, which no value may contain:
//
//	casupdate.Composite("/", casupdate.Text("region"), casupdate.Bigint("id"))  // "eu/17"
func Composite(separator string, parts ...Key) Key {
	k := Key{separator: separator}
	for _, p := range parts {
		k.columns = append(k.columns, p.columns...)
	}
	return k
}

// check says what is wrong with the key's definition.
func (k Key) check() error {
	var errs []error
	if len(k.columns) == 0 {
		errs = append(errs, errors.New("Key has no column"))
	}
	if len(k.columns) > 1 && k.separator == "" {
		errs = append(errs, errors.New("Key has several columns and no separator"))
	}
	seen := make(map[string]bool)
	for _, c := range k.columns {
		errs = append(errs, ident.Check("Key's column", c.name))
		if seen[c.name] {
			errs = append(errs, fmt.Errorf("Key has the column %q twice", c.name))
		}
		seen[c.name] = true
	}
	return errors.Join(errs...)
}

// parse makes the values of the columns.
func (k Key) parse(key string) ([]any, error) {
	if len(k.columns) == 1 {
		v, err := k.columns[0].parse(key)
		return []any{v}, err
	}
	parts := strings.Split(key, k.separator)
	if len(parts) != len(k.columns) {
		return nil, fmt.Errorf("the key has %d parts separated by %q; %d are needed", len(parts), k.separator, len(k.columns))
	}
	values := make([]any, len(parts))
	for i, c := range k.columns {
		v, err := c.parse(parts[i])
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}
