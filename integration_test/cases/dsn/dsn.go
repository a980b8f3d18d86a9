// Package dsn lists the settings of connections that have changed what locks did
// for somebody: each must give the same answers.
package dsn

// Setting is what is added to a DSN.
type Setting struct {
	Name   string // made for the names of subtests
	Params map[string]string
}

// Settings of a dialect, the defaults first. SQLite has the defaults alone.
func Settings(dialect string) []Setting {
	list := []Setting{{Name: "defaults"}}
	isolation := "transaction_isolation"
	switch dialect {
	case "postgres":
		return append(list,
			Setting{"repeatable_read", map[string]string{"default_transaction_isolation": "repeatable read"}},
			Setting{"serializable", map[string]string{"default_transaction_isolation": "serializable"}},
			Setting{"time_zone", map[string]string{"TimeZone": "Asia/Jakarta"}},
		)
	case "mariadb":
		isolation = "tx_isolation"
	case "mysql":
	default:
		return list
	}
	return append(list,
		Setting{"clientFoundRows", map[string]string{"clientFoundRows": "true"}},
		Setting{"interpolateParams", map[string]string{"interpolateParams": "true"}},
		Setting{"parseTime", map[string]string{"parseTime": "true", "loc": "Asia/Jakarta"}},
		Setting{"time_zone", map[string]string{"parseTime": "true", "loc": "UTC", "time_zone": "'+07:00'"}},
		Setting{"sql_mode", map[string]string{"sql_mode": "''"}},
		Setting{"ansi_quotes", map[string]string{"sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES'"}},
		Setting{"read_committed", map[string]string{isolation: "'READ-COMMITTED'"}},
		Setting{"serializable", map[string]string{isolation: "'SERIALIZABLE'"}},
	)
}
