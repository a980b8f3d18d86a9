package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
)

// clockLimit is the difference of clocks from which it is worth a warning.
const clockLimit = 5 * time.Second

var commonChecks = []Check{
	{
		ID: "connect", Title: "The server answers", On: everywhere,
		Why: "Without the server no key can be had: every strategy says ErrUnavailable. Work does not run then; it never runs unprotected.",
		Outcomes: []Outcome{
			{Name: "answers", Status: OK, When: "a connection was made and a statement answered"},
			{Name: "silent", Status: Fail, When: "no connection, or no answer", Mend: "see that host, port, account and password of the DSN are right, that the server runs, and that no firewall is between"},
		},
		judge: func(f *Facts) (string, string) {
			if why, ok := f.Unread["@connect"]; ok {
				return "silent", why
			}
			return "answers", "connected as " + orSomebody(f.get("@account"))
		},
	},
	{
		ID: "version", Title: "Its version is supported", On: everywhere,
		Why: "The statements and scripts use what older versions do not have, and are tested on these products only.",
		Outcomes: []Outcome{
			{Name: "supported", Status: OK, When: product.Supported() + ", or later"},
			{Name: "old", Status: Fail, When: "an older version", Mend: "upgrade to {oldest} or later"},
			{Name: "other", Status: Warn, When: "a product that speaks the same protocol", Mend: "run exclusivetest against it before you rely on it"},
		},
		judge: judgeVersion,
	},
	{
		ID: "writable", Title: "It takes writes", On: everywhere,
		Why: "A lock that cannot be written cannot be had. A decision that is read from a standby may be old, so the strategies refuse one: ErrUnavailable.",
		Outcomes: []Outcome{
			{Name: "writable", Status: OK, When: "a primary, and transactions may write"},
			{Name: "standby", Status: Fail, When: "a server in recovery, or a replica", Mend: "name the primary in the DSN (PostgreSQL: several hosts and target_session_attrs=read-write)"},
			{Name: "readonly", Status: Fail, When: "transactions are read-only by a setting", MendOn: map[string]string{
				postgres: "{alter:default_transaction_read_only} SET default_transaction_read_only = off",
				mysql:    "SET GLOBAL super_read_only = 0; SET GLOBAL read_only = 0; SET GLOBAL transaction_read_only = 0 (and take them out of the DSN)",
				mariadb:  "SET GLOBAL read_only = 0; SET GLOBAL tx_read_only = 0 (and take them out of the DSN)",
				sqlite:   "take query_only and mode=ro out of the DSN",
				redis:    "CONFIG SET min-replicas-to-write 0, or bring the replicas back",
			}},
			{Name: "file", Status: Fail, When: "SQLite: the file cannot be written", Mend: "give the process write access to {file} and to its folder"},
		},
		judge: judgeWritable,
	},
	{
		ID: "clock", Title: "Its clock and the one of this machine", On: servers,
		Why: "Leases use the server's clock alone, so no difference breaks a promise. But run keys of uniquetask (RunDay, RunHour) and what operators compare in logs come from the clients' clocks.",
		Outcomes: []Outcome{
			{Name: "agree", Status: OK, When: "less than 5 s apart"},
			{Name: "differ", Status: Warn, When: "5 s apart, or more", Mend: "run a time service (chrony, systemd-timesyncd) on both machines"},
		},
		needs: "@skew",
		judge: func(f *Facts) (string, string) {
			skew, width := f.duration("@skew", time.Microsecond), f.duration("@skew_width", time.Microsecond)
			found := fmt.Sprintf("the server's is %v ahead (± %v)", skew.Round(time.Millisecond), width.Round(time.Millisecond))
			if skew < 0 {
				found = fmt.Sprintf("the server's is %v behind (± %v)", -skew.Round(time.Millisecond), width.Round(time.Millisecond))
			}
			if skew.Abs() >= clockLimit+width {
				return "differ", found
			}
			return "agree", found
		},
	},
	{
		ID: "connections", Title: "Connections are left", On: servers,
		Why: "Renewal needs a connection while work uses another one. A server that refuses connections makes leases run out although their holders live.",
		Outcomes: []Outcome{
			{Name: "left", Status: OK, When: "at least a tenth of the limit is free, and what --pool and --processes ask for fits"},
			{Name: "few", Status: Warn, When: "less than a tenth is free", Mend: "raise {limit}, or make the pools smaller"},
			{Name: "over", Status: Fail, When: "--pool times --processes is more than the limit", Mend: "raise {limit}, make the pools smaller, or put a pooler in between"},
			{Name: "single", Status: Fail, When: "--pool 1", Mend: "allow 2 connections per process, or set NoRenew and a TTL that is long enough"},
		},
		needs: "@limit_size",
		judge: judgeConnections,
	},
}

func orSomebody(account string) string {
	if account == "" {
		return "the account of the DSN"
	}
	return account
}

func judgeVersion(f *Facts) (string, string) {
	version := f.get("@version")
	name, oldest := product.Of(f.Kind).Name, product.Of(f.Kind).Oldest
	if other := f.get("@product"); other != "" {
		return "other", fmt.Sprintf("%s, which is not %s itself (%s)", other, name, version)
	}
	if flavour := f.get("@flavour"); flavour != "" {
		name = flavour
	}
	found := name + " " + version
	if compareVersions(version, oldest) < 0 {
		return "old", found
	}
	return "supported", found
}

// compareVersions compares numbers between dots; what follows them is left out.
func compareVersions(a, b string) int {
	left, right := numbers(a), numbers(b)
	for i := range max(len(left), len(right)) {
		var l, r int
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		if l != r {
			return l - r
		}
	}
	return 0
}

func numbers(version string) (list []int) {
	for part := range strings.SplitSeq(version, ".") {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			break
		}
		list = append(list, n)
		if end < len(part) {
			break
		}
	}
	return list
}

func judgeWritable(f *Facts) (string, string) {
	switch {
	case f.on("@recovery"):
		return "standby", "the server is a standby"
	case f.on("@readonly"):
		return "readonly", f.get("@readonly_by") + " is on"
	case f.Unread["@write"] != "":
		return "file", f.Unread["@write"]
	}
	if why := f.Unread["@recovery"]; why != "" {
		return unread, why
	}
	return "writable", "it is a primary"
}

func judgeConnections(f *Facts) (string, string) {
	limit, used := f.number("@limit_size"), f.number("@used")
	pool, processes := f.number("@pool"), max(f.number("@processes"), 1)
	found := fmt.Sprintf("%.0f of %.0f (%s) are in use", used, limit, f.get("@limit"))
	switch {
	case pool == 1:
		return "single", "a pool of 1 connection"
	case pool*processes > limit:
		return "over", fmt.Sprintf("%.0f processes with %.0f connections each, and %s allows %.0f", processes, pool, f.get("@limit"), limit)
	case limit-used < limit/10:
		return "few", found
	}
	return "left", found
}

// A limit on the time of something. Zero is no limit.
type timeLimit struct {
	setting string
	unit    time.Duration
	least   time.Duration // from here on it is harmless
}

// judge returns "none", "long" or "short".
func (l timeLimit) judge(f *Facts) (string, string) {
	d := f.duration(l.setting, l.unit)
	switch {
	case d == 0:
		return "none", l.setting + " is off"
	case d < l.least:
		return "short", fmt.Sprintf("%s is %v", l.setting, d)
	}
	return "long", fmt.Sprintf("%s is %v", l.setting, d)
}

// limit makes the check of a time limit.
func limit(l timeLimit, title, why, mend string, kinds ...string) Check {
	return Check{
		ID: l.setting, Title: title, On: kinds, Why: why,
		Outcomes: []Outcome{
			{Name: "none", Status: OK, When: "off"},
			{Name: "long", Status: OK, When: fmt.Sprintf("%v or more", l.least)},
			{Name: "short", Status: Warn, When: fmt.Sprintf("less than %v", l.least), Mend: mend},
		},
		needs: l.setting,
		judge: l.judge,
	}
}

// probe is what an idle time-out has to exceed: rowlock asks the connection
// that holds a lock every second.
const probe = 2 * time.Second
