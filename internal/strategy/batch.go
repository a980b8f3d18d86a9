package strategy

import (
	"encoding/hex"
	"strings"

	"github.com/exclusive-go/exclusive"
)

// Pairs lists key and grant id of each grant, for the placeholders that
// PairText makes.
func Pairs(grants []exclusive.Grant) []any {
	args := make([]any, 0, 2*len(grants))
	for _, g := range grants {
		args = append(args, []byte(g.Key), g.ID)
	}
	return args
}

// PairText puts a pair of question marks for each grant in place of {pairs}.
func PairText(query string, grants []exclusive.Grant) string {
	return strings.Replace(query, "{pairs}", strings.Repeat(", (?, ?)", len(grants))[2:], 1)
}

// Lists carries the keys, in hexadecimal, and the ids of a batch in two
// arguments, whatever the driver: parts are separated by commas.
func Lists(grants []exclusive.Grant) (keys, ids string) {
	k, i := make([]string, len(grants)), make([]string, len(grants))
	for n, g := range grants {
		k[n], i[n] = hex.EncodeToString([]byte(g.Key)), g.ID
	}
	return strings.Join(k, ","), strings.Join(i, ",")
}
