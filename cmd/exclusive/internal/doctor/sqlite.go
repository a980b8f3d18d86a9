package doctor

import "strings"

var onSQLite = []string{sqlite}

var sqliteChecks = []Check{
	{
		ID: "journal_mode", Title: "Readers and the writer", On: onSQLite,
		Why: "WAL lets others read while one writes. With a rollback journal readers and the writer wait for each other. Without a journal on disk a crash in a write destroys the database.",
		Outcomes: []Outcome{
			{Name: "wal", Status: OK, When: "WAL"},
			{Name: "rollback", Status: Warn, When: "DELETE, TRUNCATE or PERSIST", Mend: "PRAGMA journal_mode = WAL (once; it stays with the file)"},
			{Name: "lost", Status: Fail, When: "MEMORY or OFF", Mend: "PRAGMA journal_mode = WAL, and no other in the DSN"},
		},
		needs: "journal_mode",
		judge: func(f *Facts) (string, string) {
			found := "journal_mode is " + strings.ToUpper(f.get("journal_mode"))
			switch {
			case f.is("journal_mode", "wal"):
				return "wal", found
			case f.is("journal_mode", "memory", "off"):
				return "lost", found
			}
			return "rollback", found
		},
	},
	{
		ID: "synchronous", Title: "A commit that was confirmed is stored", On: onSQLite,
		Why: "If a crash of the machine loses commits that were confirmed, a token that was handed out is handed out again, and a run that was done runs again. It is a setting of each connection: set it in the application's DSN, and run doctor with that.",
		Outcomes: []Outcome{
			{Name: "waits", Status: OK, When: "FULL or EXTRA"},
			{Name: "some", Status: Warn, When: "NORMAL: a power cut can lose the last commits", Mend: "_pragma=synchronous(FULL) in the DSN"},
			{Name: "lost", Status: Fail, When: "OFF: a power cut can destroy the database", Mend: "_pragma=synchronous(FULL) in the DSN"},
		},
		needs: "synchronous",
		judge: func(f *Facts) (string, string) {
			switch f.get("synchronous") {
			case "0":
				return "lost", "synchronous is OFF"
			case "1":
				return "some", "synchronous is NORMAL"
			}
			return "waits", "synchronous is FULL"
		},
	},
	{
		ID: "busy_timeout", Title: "The wait for another writer", On: onSQLite,
		Why: "SQLite has one writer at a time. Without a wait the second one fails at once, and a held key cannot be told from a busy database (ErrUnavailable).",
		Outcomes: []Outcome{
			{Name: "waits", Status: OK, When: "1 s or more in the DSN"},
			{Name: "short", Status: Warn, When: "less, or not in the DSN: the driver does not wait unless told to", Mend: "_pragma=busy_timeout(5000) in the DSN"},
		},
		needs: "@busy_timeout",
		judge: func(f *Facts) (string, string) {
			if f.number("@busy_timeout") < 1000 {
				return "short", "busy_timeout is " + f.get("@busy_timeout") + " ms"
			}
			return "waits", "busy_timeout is " + f.get("@busy_timeout") + " ms"
		},
	},
	{
		ID: "locking_mode", Title: "Others may use the file", On: onSQLite,
		Why: "With EXCLUSIVE the first connection that writes keeps the file for itself. All others wait in vain.",
		Outcomes: []Outcome{
			{Name: "normal", Status: OK, When: "NORMAL"},
			{Name: "exclusive", Status: Fail, When: "EXCLUSIVE", Mend: "take locking_mode out of the DSN"},
		},
		needs: "locking_mode",
		judge: func(f *Facts) (string, string) {
			if f.is("locking_mode", "exclusive") {
				return "exclusive", "locking_mode is EXCLUSIVE"
			}
			return "normal", "locking_mode is NORMAL"
		},
	},
	{
		ID: "file_system", Title: "The file is on this machine", On: onSQLite,
		Why: "SQLite's locks are the file system's. Network file systems often do not keep them, and WAL needs memory that all processes share: two machines then write at once, and the database is destroyed.",
		Outcomes: []Outcome{
			{Name: "local", Status: OK, When: "a local file system"},
			{Name: "network", Status: Fail, When: "NFS, SMB and the like", Mend: "move the file to a local disk, and run all its processes on that machine"},
			{Name: "unsure", Status: Warn, When: "FUSE, 9p, or a system where it cannot be told", Mend: "see that the file is on a local disk"},
		},
		judge: func(f *Facts) (string, string) {
			switch name := f.get("@file_system"); f.get("@file_system_kind") {
			case "network":
				return "network", name
			case "local":
				return "local", name
			default:
				return "unsure", name
			}
		},
	},
}
