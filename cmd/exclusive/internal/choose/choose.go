// Package choose finds the weakest strategy that keeps an invariant, or says
// that no lock is needed. It is docs/choosing.md as code; what a strategy
// promises it takes from package exclusive.
package choose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
)

// Answers are the values of the options that were chosen. "" means not asked.
type Answers struct {
	Invariant string `json:"invariant"`
	Dialect   string `json:"dialect,omitempty"`
	Again     string `json:"again,omitempty"`
	Row       string `json:"row,omitempty"`
	Length    string `json:"length,omitempty"`
	Late      string `json:"late,omitempty"`
	Results   string `json:"results,omitempty"`
}

// The answers that decisions look at.
const (
	work  = "work"
	yes   = "yes"
	no    = "no"
	redis = "redis"

	transaction = "transaction"
	long        = "long"

	stored  = "stored"
	refused = "refused"
	never   = "never"
)

// Option is an answer to a question.
type Option struct{ Value, Text string }

// databasesAnd offers the databases, and one more answer.
func databasesAnd(last Option) (options []Option) {
	for _, p := range product.SQL() {
		options = append(options, Option{p.Kind, p.Name})
	}
	return append(options, last)
}

// Question is one that may be asked. No path asks more than [Most].
type Question struct {
	Flag    string // its name as a flag
	Text    string
	Options []Option

	of   func(*Answers) *string
	with []condition // all must hold for it to be asked
}

// condition is about the answer to an earlier question.
type condition struct {
	flag   string
	is     []string // one of these; empty: any, but the question was asked
	except bool     // none of is; the question need not have been asked
}

func (c condition) holds(answer string) bool {
	switch {
	case c.except:
		return !slices.Contains(c.is, answer)
	case len(c.is) == 0:
		return answer != ""
	}
	return slices.Contains(c.is, answer)
}

// String is the flag with the answers that it goes with.
func (c condition) String() string { return strings.TrimSpace("--" + c.flag + " " + join(c.is, "or")) }

// join makes a list for people: "a, b or c".
func join(list []string, last string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " " + last + " " + list[len(list)-1]
}

// GoesWith says beside which answers the question is asked, "" if always.
func (q Question) GoesWith() string {
	var with, unless []string
	for _, c := range q.with {
		if c.except {
			unless = append(unless, c.String())
		} else {
			with = append(with, c.String())
		}
	}
	text := join(with, "and")
	if unless != nil {
		text += ", unless " + join(unless, "or")
	}
	return text
}

func (q Question) asked(a Answers) bool { return len(q.against(a)) == 0 }

// against are the answers, as flags, for which the question is not asked.
func (q Question) against(a Answers) (flags []string) {
	for _, c := range q.with {
		p := question(c.flag)
		answer := *p.of(&a)
		switch {
		case c.holds(answer):
		case answer != "":
			flags = append(flags, "--"+c.flag+" "+answer)
		default: // for what that one was not asked for
			flags = append(flags, p.against(a)...)
		}
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

// question returns the one of a flag.
func question(flag string) Question {
	all := Questions()
	return all[slices.IndexFunc(all, func(q Question) bool { return q.Flag == flag })]
}

// Most is how many questions are asked at most.
const Most = 5

// Questions returns the questions in the order in which they are asked.
func Questions() []Question {
	inDatabases := []string{work}
	for _, l := range withoutLock {
		if l.snippet != "" {
			inDatabases = append(inDatabases, l.value)
		}
	}
	sql := condition{flag: "dialect", is: []string{redis}, except: true}
	all := []Question{
		{
			Flag: "invariant", Text: "What must hold?",
			of: func(a *Answers) *string { return &a.Invariant },
			Options: []Option{
				{work, "the same work, for one day, order or file, is not done twice at once, or twice at all"},
			},
		},
		{
			Flag: "dialect", Text: "Where can the lock be?",
			of:      func(a *Answers) *string { return &a.Dialect },
			with:    []condition{{flag: "invariant", is: inDatabases}},
			Options: databasesAnd(Option{redis, "Redis, and in no other place"}),
		},
		{
			Flag: "again", Text: "When the work for a key was done, may it be done again for that key?",
			of:   func(a *Answers) *string { return &a.Again },
			with: []condition{{flag: "invariant", is: []string{work}}},
			Options: []Option{
				{yes, "yes, only never at the same time"},
				{no, "no, each key once: a nightly run, an order, a file"},
			},
		},
		{
			Flag: "row", Text: "Is there a row of your own whose state says how far the work is?",
			of:   func(a *Answers) *string { return &a.Row },
			with: []condition{{flag: "again", is: []string{no}}, sql},
			Options: []Option{
				{yes, "yes, such as an order that is PAID and becomes SHIPPED"},
				{no, "no"},
			},
		},
		{
			Flag: "length", Text: "How long is the work?",
			of:   func(a *Answers) *string { return &a.Length },
			with: []condition{{flag: "again", is: []string{yes}}, sql},
			Options: []Option{
				{transaction, "a few statements, in one transaction of that database"},
				{long, "longer, or it calls other systems"},
			},
		},
		{
			Flag: "late", Text: "A worker freezes past every time limit, another takes its place, and the first one wakes up and writes. That write:",
			of:   func(a *Answers) *string { return &a.Late },
			with: []condition{{flag: "again"}, {flag: "length", is: []string{transaction}, except: true}},
			Options: []Option{
				{stored, "may be stored: it does no harm"},
				{refused, "must be refused"},
				{never, "cannot be: nobody may take its place before an operator says so"},
			},
		},
		{
			Flag: "results", Text: "Where are the results stored?",
			of:      func(a *Answers) *string { return &a.Results },
			with:    []condition{{flag: "dialect", is: []string{redis}}, {flag: "again", is: []string{yes}}, {flag: "late", is: []string{refused}}},
			Options: databasesAnd(Option{"other", "in none of these"}),
		},
	}
	for _, l := range withoutLock {
		all[0].Options = append(all[0].Options, Option{l.value, l.holds})
	}
	return all
}

// Values are the options' names.
func (q Question) Values() (values []string) {
	for _, o := range q.Options {
		values = append(values, o.Value)
	}
	return values
}

// Next returns the question that comes next, false if all are answered. It
// fails if an answer is none of the options, or to a question that is not asked.
func Next(a Answers) (Question, bool, error) {
	var next Question
	open := false
	for _, q := range Questions() {
		answer := *q.of(&a)
		switch {
		case answer != "" && !slices.Contains(q.Values(), answer):
			return q, false, fmt.Errorf("--%s takes one of %s", q.Flag, strings.Join(q.Values(), ", "))
		case open: // whether it is asked depends on what is not known yet
		case answer == "" && q.asked(a):
			next, open = q, true
		case answer != "" && !q.asked(a):
			return q, false, fmt.Errorf("--%s says nothing beside %s; leave it out: it goes with %s", q.Flag, join(q.against(a), "and"), q.GoesWith())
		case q.Flag == "dialect" && answer == redis && a.Invariant != work:
			return q, false, fmt.Errorf("--dialect redis goes with --invariant %s only; name the database of your results", work)
		}
	}
	return next, open, nil
}

// Missing returns the questions that are asked whatever the answers to those
// before them will be, and those that depend on them.
func Missing(a Answers) (sure, perhaps []Question) {
	paths, asked := 0, make(map[string]int) // on how many paths, by flag
	var follow func(Answers, []string)
	follow = func(a Answers, path []string) {
		q, open, err := Next(a)
		switch {
		case err != nil: // not offered
		case !open:
			paths++
			for _, flag := range path {
				asked[flag]++
			}
		default:
			for _, o := range q.Options {
				next := a
				*next.To(q) = o.Value
				follow(next, append(slices.Clip(path), q.Flag))
			}
		}
	}
	follow(a, nil)
	for _, q := range Questions() {
		switch n := asked[q.Flag]; {
		case n == 0:
		case n == paths:
			sure = append(sure, q)
		default:
			perhaps = append(perhaps, q)
		}
	}
	return sure, perhaps
}

// To is the answer to the question.
func (a *Answers) To(q Question) *string { return q.of(a) }

// noLock is a case in which something simpler does.
type noLock struct {
	value   string
	holds   string // as in docs/choosing.md
	enough  string // as in docs/choosing.md
	snippet string // the name of one, if this module has it
	// files are the migrations that the snippet needs.
	files []string
}

// withoutLock is the first table of docs/choosing.md.
var withoutLock = []noLock{
	{value: "process", holds: "one process on one machine runs at a time", enough: "`flock(1)`"},
	{value: "numbers", holds: "numbers without gaps, as for invoices",
		enough: "a counter row, locked in the transaction that uses the number: `Run` of rowlock", snippet: "numbers"},
	{value: "row", holds: "a row exists once, as the invoice of an order, and is the whole effect", enough: "a unique constraint, and an insert that tolerates the conflict"},
	{value: "request", holds: "a request that is sent twice has one effect",
		enough: "an idempotency key; here: `Once` of package fencing, in your own transaction", snippet: "request", files: []string{"fencing"}},
	{value: "message", holds: "a message is handled once", enough: "your queue's own deduplication, plus an idempotent handler"},
	{value: "value", holds: "many callers want the same value computed", enough: "single flight, or your cache's"},
	{value: "edit", holds: "two users must not overwrite each other's edit", enough: "a version column: `casupdate` has it", snippet: "edit"},
}

// lockless returns the case of an invariant, the zero value if that needs a lock.
func lockless(invariant string) noLock {
	i := slices.IndexFunc(withoutLock, func(l noLock) bool { return l.value == invariant })
	if i < 0 {
		return noLock{}
	}
	return withoutLock[i]
}

// candidate is a strategy in one configuration.
type candidate struct {
	strategy exclusive.Strategy
	variant  string // "" is the default
	promises exclusive.Promises
	snippet  string
	files    []string // strategies whose migrations it needs
	// unfit says why it cannot be had, whatever it promises. "" if it can.
	unfit func(Answers) string
	notes func(Answers) []string
}

func (c candidate) name() string {
	if c.variant == "" {
		return c.strategy.Name
	}
	return c.strategy.Name + " " + c.variant
}

// candidates lists what can be chosen, weakest and cheapest first.
func candidates() (all []candidate) {
	for _, s := range exclusive.Strategies() {
		for _, c := range variants[s.Name] {
			c.strategy, c.promises = s, s.Promises
			if c.variant != "" {
				c.promises = variantPromises[s.Name+" "+c.variant](s.Promises)
			}
			all = append(all, c)
		}
	}
	return all
}

// The configurations other than the default ones, as their names go on.
const (
	withTTL     = "with token columns and a TTL"
	withGuarded = "with fencing.Guarded"
)

// variantPromises says what a configuration changes. A test holds it against
// what the configured strategies say.
var variantPromises = map[string]func(exclusive.Promises) exclusive.Promises{
	"casupdate " + withTTL: func(p exclusive.Promises) exclusive.Promises {
		p.RefusesStale, p.OneAtATime, p.TimeBound = true, false, true
		return p
	},
	"redisbackend " + withGuarded: func(p exclusive.Promises) exclusive.Promises {
		p.RefusesStale, p.InTx = true, true
		return p
	},
}

var variants = map[string][]candidate{
	"casupdate": {
		{
			snippet: "casupdate",
			unfit:   firstOf(inSQL, onOwnRow, unlessTakenOver),
			notes: func(Answers) []string {
				return []string{"An operator who puts a row back should know that its worker is gone: it could still finish the row under the next one. With TokenColumn and GrantColumn it is refused."}
			},
		},
		{
			variant: withTTL, snippet: "casupdate-ttl", unfit: firstOf(inSQL, onOwnRow),
			notes: func(Answers) []string {
				return []string{"Call Do for the rows in Claimed (here SHIPPING) as well as for those in From: that takes over the row of a dead worker, and is ErrHeld for that of a living one."}
			},
		},
	},
	"rowlock": {{
		snippet: "rowlock", files: []string{"rowlock"},
		unfit: firstOf(inSQL, func(a Answers) string {
			if a.Length == long && a.Late != never {
				return "it holds a connection and an open transaction for as long as work takes, and yours is long"
			}
			return ""
		}),
		notes: func(a Answers) []string {
			if a.Length == long {
				return []string{"Each running work holds a connection and an open transaction: size the pool for it, and give work a deadline.",
					"Only what is written in the locking transaction is safe: a holder whose connection breaks has lost the lock."}
			}
			return nil
		},
	}},
	"uniquetask": {{snippet: "uniquetask", files: []string{"uniquetask"}, unfit: firstOf(inSQL, func(a Answers) string {
		if a.Again == yes {
			return "a run that is done is not done again"
		}
		return ""
	})}},
	"fencing": {{snippet: "fencing", files: []string{"fencing"}, unfit: firstOf(inSQL)}},
	"redisbackend": {
		{
			snippet: "redisbackend", unfit: firstOf(inRedis),
			notes: func(a Answers) []string {
				return []string{"Redis can lose the newest leases and counts in a failover, a flush or a restart without persistence: then two workers run at once."}
			},
		},
		{
			variant: withGuarded, snippet: "redisbackend-guarded", files: []string{"fencing"},
			unfit: firstOf(inRedis, func(a Answers) string {
				if a.Results == "other" {
					return "the guard is a row in the database of the results"
				}
				return ""
			}),
		},
	},
}

// firstOf is the first reason that there is.
func firstOf(reasons ...func(Answers) string) func(Answers) string {
	return func(a Answers) string {
		for _, reason := range reasons {
			if r := reason(a); r != "" {
				return r
			}
		}
		return ""
	}
}

func inSQL(a Answers) string {
	if a.Dialect == redis {
		return "it is not in Redis"
	}
	return ""
}

func inRedis(a Answers) string {
	if a.Dialect != redis {
		return "it is in Redis"
	}
	return ""
}

func onOwnRow(a Answers) string {
	switch {
	case a.Again == yes:
		return "a row that is done stays done, and yours is to be worked on again"
	case a.Row != yes:
		return "there is no row of yours with a state"
	}
	return ""
}

// unlessTakenOver is about claims that no time ends.
func unlessTakenOver(a Answers) string {
	if a.Late != never {
		return "when a worker dies nobody takes its place: the row stays claimed until an operator puts it back"
	}
	return ""
}

// need is what the answers ask of a strategy.
func need(a Answers) exclusive.Promises {
	p := exclusive.Promises{OneWinner: true, OncePerKey: a.Again == no}
	switch a.Late {
	case never:
		p.OneAtATime = true
	case refused:
		p.TimeBound, p.RefusesStale = true, true
	case stored:
		p.TimeBound = true
	case "": // work is a transaction
		p.RefusesStale, p.InTx = true, true
	}
	return p
}

// Result is what was found.
type Result struct {
	Answers Answers `json:"answers"`
	// LockNeeded is false if something simpler is enough: Instead.
	LockNeeded bool   `json:"lock_needed"`
	Instead    string `json:"instead,omitempty"`

	// Needs are the promises that the answers ask for.
	Needs []string `json:"needs,omitempty"`
	// Strategy is the weakest that suffices, "" if none does.
	Strategy  string   `json:"strategy,omitempty"`
	Variant   string   `json:"variant,omitempty"`
	Mechanism string   `json:"mechanism,omitempty"`
	Promises  []string `json:"promises,omitempty"`
	Cost      string   `json:"cost,omitempty"`
	// Weaker are those before it, all if none suffices.
	Weaker []Refusal `json:"weaker,omitempty"`
	Notes  []string  `json:"notes,omitempty"`

	Snippet   string     `json:"snippet,omitempty"`
	Migration *Migration `json:"migration,omitempty"`
}

// Refusal says why a strategy does not suffice.
type Refusal struct {
	Strategy string   `json:"strategy"`
	Missing  []string `json:"missing,omitempty"` // promises
	Why      string   `json:"why"`
}

// Decide chooses. All questions must have been answered.
func Decide(a Answers) (*Result, error) {
	if q, open, err := Next(a); err != nil {
		return nil, err
	} else if open {
		return nil, fmt.Errorf("--%s is not answered", q.Flag)
	}
	if a.Invariant != work {
		l := lockless(a.Invariant)
		r := &Result{Answers: a, Instead: l.enough}
		if l.snippet == "" {
			return r, nil
		}
		return r, r.complete(l.snippet, a.Dialect, l.files)
	}
	r := &Result{Answers: a, LockNeeded: true, Needs: need(a).Names()}
	c, weaker, ok := weakest(a)
	r.Weaker = weaker
	if !ok {
		r.Notes = wayOut(a)
		return r, nil
	}
	r.Strategy, r.Variant, r.Mechanism, r.Cost = c.strategy.Name, c.variant, c.strategy.Mechanism, c.strategy.Cost
	r.Promises = c.promises.Names()
	if c.notes != nil {
		r.Notes = c.notes(a)
	}
	r.Notes = append(r.Notes, "No lock promises this: effects outside of the database may happen twice. Hand the key on as an idempotency key, see docs/choosing.md.")
	return r, r.complete(c.snippet, destination(a), c.files)
}

// weakest returns the first candidate that suffices, and why those before it do
// not.
func weakest(a Answers) (c candidate, weaker []Refusal, ok bool) {
	for _, c := range candidates() {
		why := c.unfit(a)
		missing := c.promises.Missing(need(a))
		if len(missing) > 0 {
			lacks := "it does not promise " + strings.Join(missing, ", ")
			if why != "" {
				lacks += "; " + why
			}
			why = lacks
		}
		if why == "" {
			return c, weaker, true
		}
		weaker = append(weaker, Refusal{c.name(), missing, why})
	}
	return c, weaker, false
}

// destination is the dialect of the database that the snippet opens.
func destination(a Answers) string {
	if a.Results != "" {
		return a.Results
	}
	return a.Dialect
}

// wayOut says which other answer would help when no strategy suffices.
func wayOut(a Answers) (notes []string) {
	for _, change := range []struct {
		when string
		to   func(*Answers)
	}{
		{"With the lock in a SQL database", func(a *Answers) { inDatabase(a); a.Row = a.then(no) }},
		{"With the lock in a SQL database, and a row of your own that has a state", func(a *Answers) {
			if a.Again == no {
				inDatabase(a)
				a.Row = yes
			}
		}},
		{"With a row of your own that has a state", func(a *Answers) { a.Row = a.then(yes) }},
		{"If another worker may take over when a time limit has passed, and late writes are refused", func(a *Answers) { a.Late = refused }},
	} {
		other := a
		change.to(&other)
		if c, _, ok := weakest(other); ok {
			notes = append(notes, change.when+": "+c.name()+".")
		}
	}
	if a.Results == "other" {
		notes = append(notes, "Or hand the token of redisbackend on to the place of the results, and have it refuse a token lower than the last it saw.")
	}
	return notes
}

// inDatabase moves the lock into a database.
func inDatabase(a *Answers) {
	a.Dialect, a.Results = "postgres", ""
	if a.Again == yes {
		a.Length = long
	}
}

// then is the answer about a row, if that is asked.
func (a *Answers) then(row string) string {
	if a.Again == yes {
		return ""
	}
	return row
}
