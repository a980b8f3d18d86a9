// Package doctor looks at a database and says what of it weakens the promises of
// the strategies, why, and what mends it. What it reads from the server and what
// it makes of it are apart: a check is a pure function of [Facts]. The page
// docs/doctor.md is made from the same checks.
package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Status is what a check came to.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // it works, and something should be known or better
	Fail Status = "fail" // a promise is not kept, or nothing works
)

// Finding is the result of a check.
type Finding struct {
	Check  string `json:"check"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	// Found is what the server said.
	Found string `json:"found"`
	// Why and Mend are given if the status is not OK: what follows from what
	// was found, and the statement or setting that changes it.
	Why  string `json:"why,omitempty"`
	Mend string `json:"mend,omitempty"`
	// Ignored findings do not count.
	Ignored bool `json:"ignored,omitempty"`
}

// Check is one thing to look at.
type Check struct {
	ID    string
	Title string
	On    []string // the kinds of server
	// Why says what it matters for.
	Why      string
	Outcomes []Outcome
	// needs names the value without which there is nothing to judge.
	needs string
	// judge returns the name of an outcome and what was found.
	judge func(f *Facts) (outcome, found string)
	// mend, if it has something to say, is in place of the outcome's.
	mend func(f *Facts) string
}

// Outcome is one of the results that a check can have.
type Outcome struct {
	Name   string
	Status Status
	// When is the condition, in words.
	When string
	// Mend changes it. What is in braces is filled in from the facts: {account},
	// {database} and so on; {alter:x} is ALTER ROLE, DATABASE or SYSTEM, as it
	// has to be for the setting x.
	Mend string
	// MendOn is in place of Mend where it depends on the kind of server.
	MendOn map[string]string
}

func (o Outcome) mend(kind string) string {
	if m, ok := o.MendOn[kind]; ok {
		return m
	}
	return o.Mend
}

// The kinds of server.
const (
	postgres = "postgres"
	mysql    = "mysql"
	mariadb  = "mariadb"
	sqlite   = "sqlite"
	redis    = "redis"
)

var (
	everywhere = []string{postgres, mysql, mariadb, sqlite, redis}
	servers    = []string{postgres, mysql, mariadb, redis}
	inSQL      = []string{postgres, mysql, mariadb, sqlite}
	sqlServers = []string{postgres, mysql, mariadb}
	family     = []string{mysql, mariadb}
)

// Checks lists all, in the order in which they are made and documented.
func Checks() []Check {
	return slices.Concat(commonChecks, sqlChecks, postgresChecks, mysqlChecks, sqliteChecks, redisChecks)
}

// IDs are the names of all checks.
func IDs() (ids []string) {
	for _, c := range Checks() {
		ids = append(ids, c.ID)
	}
	return ids
}

// Facts are what is known of a server, as texts: its settings by their names,
// and under names that begin with @ what else was asked.
type Facts struct {
	Kind   string
	Values map[string]string
	// Unread says why a value is not known.
	Unread map[string]string
	// Differences are those of the tables.
	Differences []schema.Difference
}

func newFacts(kind string) *Facts {
	return &Facts{Kind: kind, Values: make(map[string]string), Unread: make(map[string]string)}
}

func (f *Facts) get(name string) string { return f.Values[name] }

// is compares without regard to case.
func (f *Facts) is(name string, values ...string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return strings.EqualFold(f.Values[name], v) })
}

// on reports whether a switch is on, in whatever way servers say so.
func (f *Facts) on(name string) bool { return f.is(name, "on", "1", "true", "yes", "t") }

// known reports whether there is a value.
func (f *Facts) known(name string) bool { _, ok := f.Values[name]; return ok }

func (f *Facts) number(name string) float64 {
	n, _ := strconv.ParseFloat(f.Values[name], 64)
	return n
}

// duration reads a number of units.
func (f *Facts) duration(name string, unit time.Duration) time.Duration {
	return time.Duration(f.number(name) * float64(unit))
}

// unread is the outcome of a check whose value could not be read.
const unread = "unread"

// Examine makes the checks that apply. ignore names those whose findings do not
// count.
func Examine(f *Facts, ignore []string) (findings []Finding) {
	for _, c := range Checks() {
		if !slices.Contains(c.On, f.Kind) {
			continue
		}
		if len(findings) > 0 && findings[0].Status == Fail {
			break // nobody answers
		}
		finding, applies := c.examine(f)
		if !applies {
			continue
		}
		finding.Ignored = slices.Contains(ignore, c.ID)
		findings = append(findings, finding)
	}
	return findings
}

// examine is false if the server has no such thing.
func (c Check) examine(f *Facts) (Finding, bool) {
	name, found := c.outcome(f)
	if name == "" {
		return Finding{}, false
	}
	finding := Finding{Check: c.ID, Title: c.Title, Found: found}
	if name == unread {
		finding.Status, finding.Why = Warn, c.Why
		finding.Mend = "let the account read it, or look at it yourself"
		return finding, true
	}
	i := slices.IndexFunc(c.Outcomes, func(o Outcome) bool { return o.Name == name })
	if i < 0 {
		panic(fmt.Sprintf("doctor: check %s has no outcome %q", c.ID, name))
	}
	o := c.Outcomes[i]
	finding.Status = o.Status
	if o.Status != OK {
		finding.Why, finding.Mend = c.Why, fill(o.mend(f.Kind), f)
		if c.mend != nil {
			finding.Mend = strategy.Default(c.mend(f), finding.Mend)
		}
	}
	return finding, true
}

// outcome is that of judge. It is unread if the value could not be read, and
// empty if this version of the server does not have it.
func (c Check) outcome(f *Facts) (name, found string) {
	if c.needs != "" && !f.known(c.needs) {
		return f.missing(c.needs)
	}
	return c.judge(f)
}

// fill puts facts in place of what is in braces.
func fill(text string, f *Facts) string {
	for name, value := range f.Values {
		if hole, ok := strings.CutPrefix(name, "@"); ok {
			text = strings.ReplaceAll(text, "{"+hole+"}", value)
		}
	}
	return text
}

// missing is the answer of a check whose value is not there: could not be read,
// or is unknown to this version.
func (f *Facts) missing(name string) (string, string) {
	if why, ok := f.Unread[name]; ok {
		return unread, name + " cannot be read: " + why
	}
	return "", ""
}

// Good reports whether no finding that counts is a failure.
func Good(findings []Finding) bool {
	return !slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Fail && !f.Ignored })
}
