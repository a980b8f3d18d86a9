package casupdate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// texts is what differs between the servers. In braces stand the names and
// pieces of a builder, and behind a colon its parameters.
type texts struct {
	claim                     string // see dialect.claim
	prove                     string // a row if the grant is current, which stays locked
	lockedRead                string // the row; waits for its lock
	renew                     string // extends the claims of {batch}, except locked ones
	lockedVersion             string // reads it; waits for its lock
	now, timestamp            string // the clock: microseconds, and for timestamps
	stateText                 string // the state as text
	unpadded                  string // makes text without padding of a column of type char(n)
	exactly                   string // {column} is {:bytes}, byte for byte
	index, empty              string // if not empty: the name of the key's index; nothing, if there is a table
	claimReturns, byLastID    bool   // claim returns the row, refused or not; answers are in LastID
	renewReturns, bytesAsText bool   // renew returns grant ids; {:bytes} is a string
}

// what is the row's state: one of these, or none of the configured.
const (
	isOther int64 = iota
	isFrom
	isClaimed
	isDone
)

// row is a row of the application's table as it was read.
type row struct {
	state              string
	is                 int64
	token              int64
	grant, holder      string
	claimedAt, expires int64
}

// scan reads the columns of the piece {columns}.
func (r *row) scan(scan db.Scan) error {
	return scan(&r.state, &r.is, &r.token, &r.grant, &r.holder, &r.claimedAt, &r.expires)
}

// who describes the holder of a claimed row.
func (r *row) who() *exclusive.Holder {
	h := &exclusive.Holder{ID: r.grant, Name: r.holder, Token: r.token}
	if r.claimedAt > 0 {
		h.Since = time.UnixMicro(r.claimedAt)
	}
	if r.expires > 0 {
		h.Expires = time.UnixMicro(r.expires)
	}
	return h
}

// The arguments of a statement that are not the same at each call.
type (
	keyPart  int      // the value of a key column
	keyBytes int      // the same, to be compared byte for byte
	grantID  struct{} // the grant's id
	least    struct{} // its token, or 0 if that is not known
	most     struct{} // its token, or the largest if that is not known
)

// statement is SQL with its arguments in the order of the placeholders.
type statement struct {
	text string
	args []any // a value, or one of the types above
}

// call is what a statement is run with.
type call struct {
	key   []any
	grant string
	token int64 // 0: not known
}

func (s *statement) bind(c call, bytesAsText bool) []any {
	args := make([]any, len(s.args))
	for i, a := range s.args {
		switch a := a.(type) {
		case keyPart:
			args[i] = c.key[a]
		case keyBytes:
			args[i] = c.key[a]
			if text, ok := c.key[a].(string); ok && !bytesAsText {
				args[i] = []byte(text)
			}
		case grantID:
			args[i] = c.grant
		case least:
			args[i] = c.token
		case most:
			args[i] = cmp.Or(c.token, math.MaxInt64)
		default:
			args[i] = a
		}
	}
	return args
}

// builder makes statements out of texts.
type builder struct {
	dialect db.Dialect
	texts   texts
	names   map[string]string // quoted identifiers: put in as they are
	pieces  map[string]string // texts: expanded in their turn
	params  map[string]any    // the arguments
}

func newBuilder(d db.Dialect, schema, table string, key Key) *builder {
	t := map[db.Dialect]texts{db.Postgres: postgresTexts, db.MySQL: mysqlTexts, db.MariaDB: mysqlTexts, db.SQLite: sqliteTexts}[d]
	b := &builder{
		dialect: d, texts: t,
		names:  map[string]string{"table": ident.Quote(quote(d), schema, table)},
		pieces: map[string]string{"now": t.now, "timestamp": t.timestamp},
		params: map[string]any{"id": grantID{}, "least": least{}, "most": most{}},
	}
	var same, aliased, joined []string
	for i, c := range key.columns {
		n := strconv.Itoa(i)
		b.name("k"+n, c.name)
		b.params["k"+n] = keyPart(i)
		same = append(same, "{k"+n+"} = {:k"+n+"}")
		if c.text {
			// The comparison before it is for the index.
			b.params["b"+n] = keyBytes(i)
			same = append(same, strings.NewReplacer("{column}", "{k"+n+"}", "{:bytes}", "{:b"+n+"}").Replace(t.exactly))
		}
		aliased = append(aliased, "{k"+n+"} AS exclusive_k"+n)
		joined = append(joined, "{k"+n+"} = exclusive_k"+n)
	}
	b.pieces["row"] = strings.Join(same, " AND ")
	b.pieces["keys"] = strings.Join(aliased, ", ")
	b.pieces["same_keys"] = strings.Join(joined, " AND ")
	return b
}

func (b *builder) name(as, name string) {
	b.names[as] = ident.Quote(quote(b.dialect), "", name)
}

// quote returns the character that encloses identifiers. SQLite takes a name in
// double quotes that is no column's for a text (manual, "Quirks"): a mistake in
// the key's column could then match every row.
func quote(d db.Dialect) string {
	if d == db.SQLite {
		return "`"
	}
	return strategy.Quote(d)
}

// assign makes the piece as that sets columns: ", a = …, b = …".
func (b *builder) assign(as string, list []assignment) {
	var text strings.Builder
	for i, a := range list {
		n := as + strconv.Itoa(i)
		b.name(n, a.column)
		text.WriteString(", {" + n + "} = ")
		switch a.value {
		case Now:
			text.WriteString("{timestamp}")
		case NowMicros:
			text.WriteString("{now}")
		default:
			b.params[n] = a.value
			text.WriteString("{:" + n + "}")
		}
	}
	b.pieces[as] = text.String()
}

// clone is for the statements of one call.
func (b *builder) clone() *builder {
	c := *b
	c.names, c.pieces, c.params = maps.Clone(b.names), maps.Clone(b.pieces), maps.Clone(b.params)
	return &c
}

// statement expands a text. Each parameter gets a placeholder for each time it
// occurs, so that PostgreSQL infers the type of each from where it stands.
func (b *builder) statement(text string) statement {
	var s statement
	var out strings.Builder
	b.expand(&out, &s.args, text)
	s.text = out.String()
	return s
}

func (b *builder) expand(out *strings.Builder, args *[]any, text string) {
	for {
		before, rest, found := strings.Cut(text, "{")
		out.WriteString(before)
		if !found {
			return
		}
		var word string
		word, text, _ = strings.Cut(rest, "}")
		if param, ok := strings.CutPrefix(word, ":"); ok {
			arg, known := b.params[param]
			if !known {
				panic("casupdate: no parameter is called " + param)
			}
			*args = append(*args, arg)
			if b.dialect == db.Postgres {
				fmt.Fprintf(out, "$%d", len(*args))
			} else {
				out.WriteByte('?')
			}
		} else if name, ok := b.names[word]; ok {
			out.WriteString(name)
		} else if piece, ok := b.pieces[word]; ok {
			b.expand(out, args, piece)
		} else {
			panic("casupdate: nothing is called " + word)
		}
	}
}

// dialect is the SQL of a Table on one kind of server.
type dialect struct {
	*builder
	cfg                                                 Config
	claiming                                            atomic.Pointer[claiming] // nil until ready
	finishS, revertS, failS, proveS, readS, lockedReadS statement
}

// claiming is what a dialect has only when the name of the key's index is known,
// where its claim needs to be told.
type claiming struct {
	index  string
	claimS statement
}

// newDialect makes the statements for a configuration that is complete.
func newDialect(d db.Dialect, cfg Config) *dialect {
	b := newBuilder(d, cfg.Schema, cfg.Table, cfg.Key)
	b.name("state", cfg.StateColumn)
	b.pieces["state_text"], b.pieces["unpadded"] = b.texts.stateText, b.texts.unpadded
	b.params["from"], b.params["claimed"], b.params["done"], b.params["failed"] = cfg.From, cfg.Claimed, cfg.Done, cfg.Failed
	b.params["holder"], b.params["ttl"] = cfg.Holder, cfg.TTL.Microseconds()

	// What the columns that need not exist contribute to the statements.
	claim, version := "", ""
	free, mine, stamp := "{state} = {:from}", "", ""
	columns := "{state_text}, " +
		"CASE WHEN {state} = {:from} THEN 1 WHEN {state} = {:claimed} THEN 2 WHEN {state} = {:done} THEN 3 ELSE 0 END"
	if !cfg.claims() {
		columns = "{state_text}, 0"
	}
	optional := func(as, name, absent string) bool {
		if name == "" {
			columns += ", " + absent
			return false
		}
		b.name(as, name)
		if absent == "''" { // text
			columns += ", COALESCE({" + as + "}{unpadded}, '')"
		} else {
			columns += ", COALESCE({" + as + "}, " + absent + ")"
		}
		return true
	}
	b.pieces["own_column"] = ""
	if optional("token", cfg.TokenColumn, "0") { // and so {grant}, whose claim may have run before
		own := "{state} = {:claimed} AND {grant} = {:id}"
		if b.texts.byLastID {
			b.pieces["own_column"] = ", " + own + " AS exclusive_own"
			own = "exclusive_own"
		}
		b.pieces["next_token"] = "CASE WHEN " + own + " THEN {token} ELSE COALESCE({token}, 0) + 1 END"
		if b.texts.byLastID {
			b.pieces["next_token"] = "LAST_INSERT_ID(" + b.pieces["next_token"] + ")"
		}
		claim += ", {token} = {next_token}"
	}
	if optional("grant", cfg.GrantColumn, "''") {
		claim += ", {grant} = {:id}"
		// The token: a copy of the grant's own claim may have arrived after its end.
		mine = " AND {grant} = {:id} AND {token} BETWEEN {:least} AND {:most}"
		stamp = ", {grant} = {:id}"
		// The statement ran before and its answer was lost.
		free += " OR ({state} = {:claimed} AND {grant} = {:id})"
	}
	if optional("holder", cfg.HolderColumn, "''") {
		claim += ", {holder} = {:holder}"
	}
	if optional("claimed_at", cfg.ClaimedAtColumn, "0") {
		claim += ", {claimed_at} = {now}"
	}
	if optional("expires", cfg.ExpiresColumn, "0") {
		claim += ", {expires} = {now} + {:ttl}"
		// NULL is not less than anything: such a claim does not end.
		free += " OR ({state} = {:claimed} AND {expires} <= {now})"
	}
	if cfg.VersionColumn != "" {
		b.name("version", cfg.VersionColumn)
		version = ", {version} = COALESCE({version}, 0) + 1"
	}
	for as, set := range map[string]Set{"on_claim": cfg.OnClaim, "on_done": cfg.OnDone, "on_revert": cfg.OnRevert, "on_failed": cfg.OnFailed} {
		list, _ := set.assignments(as, nil) // checked by New
		b.assign(as, list)
	}
	b.pieces["columns"] = columns
	b.pieces["free"], b.pieces["mine"], b.pieces["stamp"] = "("+free+")", mine, stamp
	b.pieces["raise"] = version
	b.pieces["claim"] = "{state} = {:claimed}" + claim + "{raise}{on_claim}"
	b.pieces["current"] = "{row} AND {state} = {:claimed}{mine}"

	q := &dialect{builder: b, cfg: cfg}
	q.readS, q.lockedReadS = b.statement(readText), b.statement(b.texts.lockedRead)
	if cfg.claims() {
		if b.texts.index == "" {
			q.claiming.Store(&claiming{claimS: b.statement(b.texts.claim)})
		}
		q.proveS, q.finishS, q.revertS, q.failS = b.statement(b.texts.prove), b.statement(finishText), b.statement(revertText), b.statement(failText)
	}
	return q
}

// ready finds the index that a claim needs to be told, where it needs one. Calls
// at the same time do so each on its own: none waits for the connection of another.
func ready(ctx context.Context, r db.Runner, q *dialect) error {
	if q.texts.index == "" || q.claiming.Load() != nil {
		return nil
	}
	b := q.clone()
	b.params["schema"], b.params["table"] = nil, q.cfg.Table
	if q.cfg.Schema != "" {
		b.params["schema"] = q.cfg.Schema
	}
	columns := make([]string, len(q.cfg.Key.columns))
	for i, c := range q.cfg.Key.columns {
		name := "c" + strconv.Itoa(i)
		b.params[name] = c.name
		columns[i] = "{:" + name + "}"
	}
	s := b.statement(strings.ReplaceAll(b.texts.index, "{:columns}", strings.Join(columns, ", ")))
	names, err := strategy.Strings(ctx, r, s.text, s.args)
	if err != nil {
		return err
	}
	if names == nil {
		s := b.statement(b.texts.empty)
		if err := r.Query(ctx, s.text, nil, func(db.Scan) error { return nil }); err != nil {
			return err
		}
		return errNotUnique
	}
	b.name("index", names[0])
	q.claiming.Store(&claiming{names[0], b.statement(b.texts.claim)})
	return nil
}

// The statements that are the same everywhere. Each that writes changes a row that it
// matches, except a transition that stays, so that MySQL counts it whatever the DSN says.
const (
	finishText = `UPDATE {table} SET {state} = {:done}{raise}{on_done} WHERE {current}`
	revertText = `UPDATE {table} SET {state} = {:from}{raise}{on_revert} WHERE {current}`
	failText   = `UPDATE {table} SET {state} = {:failed}{raise}{on_failed} WHERE {current}`
	readText   = `SELECT {columns} FROM {table} WHERE {row}`
	proveText  = `SELECT 1 FROM {table} WHERE {current}`

	transitionText = `UPDATE {table} SET {state} = {:to}{stamp}{raise}{set} WHERE {row} AND {state} = {:from}`
	inFromText     = `SELECT 1 FROM {table} WHERE {row} AND {state} = {:from} FOR UPDATE` // see stays
	updateText     = `UPDATE {table} SET {version} = {version} + 1{set} WHERE {row} AND {version} = {:version}`
	versionText    = `SELECT {version} FROM {table} WHERE {row}`
)

// errNotUnique: a claim would change more than one row, or has.
var errNotUnique = &exclusive.Error{Op: "claim", Kind: exclusive.ErrSchema,
	Hint: "more than one row can have the same key; Config.Key must name columns that have a unique index"}

// claim moves the row to Claimed if it is in From, or is this grant's already
// (the statement ran before and its answer was lost), or has run out. It does
// not wait for a transaction that has locked the row. When it does not win the
// row says why.
func (q *dialect) claim(ctx context.Context, r db.Runner, c call) (out row, found, won bool, err error) {
	claimS := &q.claiming.Load().claimS
	args := claimS.bind(c, q.texts.bytesAsText)
	if q.texts.byLastID {
		res, err := r.Exec(ctx, claimS.text, args...)
		switch {
		case err != nil:
			return out, false, false, err
		case res.Rows > 1:
			return out, true, true, errNotUnique
		case res.LastID > 0 || res.Rows == 1 && q.cfg.TokenColumn == "":
			return row{token: res.LastID, is: isClaimed, grant: c.grant}, true, true, nil
		}
		// A trigger on the table keeps LAST_INSERT_ID from coming back, and a row that
		// was claimed before need not count.
		out, found, err = q.read(ctx, r, c, false)
		return out, found, q.cfg.GrantColumn != "" && out.is == isClaimed && out.grant == c.grant, err
	}
	rows := 0
	err = r.Query(ctx, claimS.text, args, func(scan db.Scan) error {
		found = true
		var w int64
		err := scan(&w, &out.state, &out.is, &out.token, &out.grant, &out.holder, &out.claimedAt, &out.expires)
		if w == 1 {
			won = true
			rows++
		}
		return err
	})
	switch {
	case err != nil:
		return out, false, false, err
	case rows > 1:
		return out, true, true, errNotUnique
	case won || q.texts.claimReturns:
		return out, found, won, nil
	}
	out, found, err = q.read(ctx, r, c, false)
	return out, found, false, err
}

// change runs a statement that changes the state of one row or none.
func (q *dialect) change(ctx context.Context, r db.Runner, s *statement, c call) (bool, error) {
	return strategy.Changed(ctx, r, s.text, s.bind(c, q.texts.bytesAsText)...)
}

// prove locks the row and reports whether the grant is current.
func (q *dialect) prove(ctx context.Context, r db.Runner, c call) (bool, error) {
	return strategy.Exists(ctx, r, q.proveS.text, q.proveS.bind(c, q.texts.bytesAsText)...)
}

// read reads the row; lock waits for the transactions that hold it.
func (q *dialect) read(ctx context.Context, r db.Runner, c call, lock bool) (out row, found bool, err error) {
	s := &q.readS
	if lock {
		s = &q.lockedReadS
	}
	found, err = strategy.One(ctx, r, s.text, s.bind(c, q.texts.bytesAsText), out.scan)
	return out, found, err
}

// stays reports whether a row that makes a transition may stay as it is. Whether MySQL
// counts such a row depends on the DSN (clientFoundRows).
func (q *dialect) stays(t Transition) bool {
	return q.texts.byLastID && same(t.From, t.To) && q.cfg.GrantColumn == "" && q.cfg.VersionColumn == ""
}

// transition moves the row from one state to another. If it stays r must be a
// transaction: then the row is locked and found in its state first.
func (q *dialect) transition(ctx context.Context, r db.Runner, c call, t Transition, set []assignment) (bool, error) {
	b := q.clone()
	b.params["from"], b.params["to"] = t.From, t.To
	b.assign("set", set)
	stays := q.stays(t)
	if stays {
		s := b.statement(inFromText)
		if found, err := strategy.Exists(ctx, r, s.text, s.bind(c, q.texts.bytesAsText)...); err != nil || !found {
			return false, err
		}
	}
	s := b.statement(transitionText)
	changed, err := q.change(ctx, r, &s, c)
	return err == nil && (changed || stays), err
}

// renewal is the statement that extends claims, except those whose rows are
// locked. On PostgreSQL and SQLite it returns the grant ids that it extended.
func (q *dialect) renewal(calls []call) (text string, args []any) {
	b := q.clone()
	if c := q.claiming.Load(); c.index != "" {
		b.name("index", c.index)
	}
	// Few different texts, for the sake of statement caches: the last claim
	// fills the batch up to a power of two.
	size := 1
	for size < len(calls) {
		size *= 2
	}
	var batch strings.Builder
	for i := range size {
		c := calls[min(i, len(calls)-1)]
		n := strconv.Itoa(i)
		if i > 0 {
			batch.WriteString(" OR ")
		}
		batch.WriteString("(")
		for k, v := range c.key {
			name := "r" + n + "_" + strconv.Itoa(k)
			b.params[name] = v
			fmt.Fprintf(&batch, "{k%d} = {:%s} AND ", k, name)
		}
		b.params["r"+n], b.params["t"+n] = c.grant, c.token
		batch.WriteString("{grant} = {:r" + n + "} AND {token} = {:t" + n + "})")
	}
	b.pieces["batch"] = batch.String()
	b.pieces["size"] = strconv.Itoa(size)
	s := b.statement(b.texts.renew)
	return s.text, s.args
}
