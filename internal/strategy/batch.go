package strategy

import (
	"encoding/hex"
	"strconv"
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

// Triples is Pairs with the token of each grant, for {triples}.
func Triples(grants []exclusive.Grant) []any {
	args := make([]any, 0, 3*len(grants))
	for _, g := range grants {
		args = append(args, []byte(g.Key), g.ID, g.Token)
	}
	return args
}

// PairText puts a pair or triple of question marks for each grant in place of
// {pairs} or {triples}.
func PairText(query string, grants []exclusive.Grant) string {
	return strings.NewReplacer(
		"{pairs}", strings.Repeat(", (?, ?)", len(grants))[2:],
		"{triples}", strings.Repeat(", (?, ?, ?)", len(grants))[2:],
	).Replace(query)
}

// Lists carries the keys, in hexadecimal, the ids and the tokens of a batch in three
// arguments, whatever the driver: parts are separated by commas.
func Lists(grants []exclusive.Grant) (keys, ids, tokens string) {
	k, i, t := make([]string, len(grants)), make([]string, len(grants)), make([]string, len(grants))
	for n, g := range grants {
		k[n], i[n], t[n] = hex.EncodeToString([]byte(g.Key)), g.ID, strconv.FormatInt(g.Token, 10)
	}
	return strings.Join(k, ","), strings.Join(i, ","), strings.Join(t, ",")
}
