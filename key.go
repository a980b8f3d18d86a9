package exclusive

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key, in bytes. It is the same on every backend,
// and short enough for an index on every server (MySQL's smallest index limit
// is 767 bytes: manual, "InnoDB Limits").
const MaxKeyBytes = 200

// ValidateKey reports as ErrInvalid why key cannot be one: keys are 1 to 200
// bytes of valid UTF-8 without NUL, compared byte for byte everywhere. Case,
// accents and trailing spaces count. The strategies call it before any I/O.
func ValidateKey(op, key string) error {
	var hint string
	switch {
	case key == "":
		hint = "the key is empty"
	case len(key) > MaxKeyBytes:
		hint = fmt.Sprintf("the key has %d bytes; %d are allowed. Hash it, and keep what you hashed", len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		hint = "the key is not valid UTF-8"
	case strings.IndexByte(key, 0) >= 0:
		hint = "the key has a NUL byte"
	default:
		return nil
	}
	return &Error{Op: op, Key: strings.ToValidUTF8(key, "\uFFFD"), Kind: ErrInvalid, Hint: hint}
}
