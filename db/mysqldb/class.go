package mysqldb

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Classify says what an error of the driver means.
func (d *DB) Classify(err error) db.Class {
	var server *mysql.MySQLError
	switch {
	case err == nil:
		return db.Other
	case errors.Is(err, db.ErrNotCommitted), errors.Is(err, db.ErrEndedEarly):
		return db.Conflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return db.Other
	case errors.As(err, &server):
		return number(server.Number)
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn):
		return db.Disconnected
	case errors.Is(err, mysql.ErrPktTooLarge):
		return db.Data
	}
	return db.Network(err)
}

// errNoSuchSavepoint is ER_SP_DOES_NOT_EXIST.
const errNoSuchSavepoint = 1305

// number classifies an error number of the server (MySQL manual, "Server Error
// Message Reference"; MariaDB documentation, "MariaDB Error Codes").
func number(n uint16) db.Class {
	switch n {
	// The whole transaction is gone ("InnoDB Error Handling"). Galera and group
	// replication find conflicts at COMMIT, where the server then rolls back.
	case 1213, // ER_LOCK_DEADLOCK, and Galera's certification failure
		1614, // ER_XA_RBDEADLOCK
		1020, // ER_CHECKREAD: MariaDB's innodb_snapshot_isolation
		1180, // ER_ERROR_DURING_COMMIT
		3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT, group replication's
		return db.Conflict

	// Only the statement is gone; the transaction goes on with half of its work
	// unless innodb_rollback_on_timeout is set ("InnoDB Error Handling").
	case 1205, // ER_LOCK_WAIT_TIMEOUT
		3572: // ER_LOCK_NOWAIT: MySQL's NOWAIT, where MariaDB says 1205
		return db.Locked

	// "max_execution_time"; MariaDB "Aborting Statements"; "KILL QUERY".
	case 1317, // ER_QUERY_INTERRUPTED
		1969, // ER_STATEMENT_TIMEOUT, MariaDB's max_statement_time
		3024: // ER_QUERY_TIMEOUT
		return db.Timeout

	// A replica, or a primary that was demoted ("read_only",
	// "innodb_read_only").
	case 1290, // ER_OPTION_PREVENTS_STATEMENT
		1792, // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		1836: // ER_READ_ONLY_MODE
		return db.ReadOnly

	// "Access Control and Account Management".
	case 1044, // ER_DBACCESS_DENIED_ERROR
		1045, // ER_ACCESS_DENIED_ERROR
		1142, // ER_TABLEACCESS_DENIED_ERROR
		1143, // ER_COLUMNACCESS_DENIED_ERROR
		1227, // ER_SPECIFIC_ACCESS_DENIED_ERROR
		1370, // ER_PROCACCESS_DENIED_ERROR
		1698, // ER_ACCESS_DENIED_NO_PASSWORD_ERROR
		1820, // ER_MUST_CHANGE_PASSWORD
		1862, // ER_MUST_CHANGE_PASSWORD_LOGIN
		3118: // ER_ACCOUNT_HAS_BEEN_LOCKED
		return db.Denied

	case 1046, // ER_NO_DB_ERROR: the DSN names no database
		1049,               // ER_BAD_DB_ERROR
		1054,               // ER_BAD_FIELD_ERROR
		1146,               // ER_NO_SUCH_TABLE
		errNoSuchSavepoint, // of functions and procedures too
		4091:               // ER_UNKNOWN_SEQUENCES, MariaDB's
		return db.Schema

	// Another server than the adapter is for, or a version that is too old.
	case 1064, // ER_PARSE_ERROR
		1193, // ER_UNKNOWN_SYSTEM_VARIABLE
		1235: // ER_NOT_SUPPORTED_YET
		return db.Syntax

	case 1062: // ER_DUP_ENTRY
		return db.Duplicate

	// In strict mode ("Server SQL Modes"); otherwise the server cuts the value.
	case 1264, // ER_WARN_DATA_OUT_OF_RANGE
		1292, // ER_TRUNCATED_WRONG_VALUE
		1300, // ER_INVALID_CHARACTER_STRING
		1366, // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
		1406: // ER_DATA_TOO_LONG
		return db.Data

	// Said before a statement runs.
	case 1040, // ER_CON_COUNT_ERROR
		1047, // ER_UNKNOWN_COM_ERROR: Galera's "WSREP has not yet prepared node"
		1129, // ER_HOST_IS_BLOCKED
		1130, // ER_HOST_NOT_PRIVILEGED
		1203, // ER_TOO_MANY_USER_CONNECTIONS
		1226: // ER_USER_LIMIT_REACHED
		return db.Unreachable

	// The connection ends with these, at any point of a statement.
	case 1053, // ER_SERVER_SHUTDOWN
		1077, // ER_NORMAL_SHUTDOWN
		1152, // ER_ABORTING_CONNECTION
		1184, // ER_NEW_ABORTING_CONNECTION
		1927, // ER_CONNECTION_KILLED, MariaDB's
		4031: // ER_CLIENT_INTERACTION_TIMEOUT, MySQL's wait_timeout
		return db.Disconnected
	}
	return db.Other
}
