package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestSQLState(t *testing.T) {
	tests := map[string]Class{
		"":      Other,
		"40001": Conflict, // serialization failure
		"40P01": Conflict, // deadlock
		"40003": Disconnected,
		"25P02": Conflict, // in a failed transaction
		"55P03": Locked,
		"57014": Timeout,
		"25006": ReadOnly,
		"42501": Denied,
		"28P01": Denied, // wrong password
		"28000": Denied,
		"42P01": Schema,
		"42703": Schema,
		"3F000": Schema,
		"3D000": Schema,
		"23505": Duplicate,
		"22001": Data,
		"22P02": Data,
		"22023": Other,
		"08006": Disconnected,
		"25P03": Disconnected, // idle in a transaction
		"25P04": Disconnected, // transaction time-out
		"57P01": Disconnected,
		"57P05": Disconnected, // idle session
		"57P03": Unreachable,  // starting up
		"53300": Unreachable,  // too many connections
		"53100": Unreachable,  // disk full
		"58030": Unreachable,
		"42601": Syntax,
		"42804": Schema, // type mismatch
		"42P10": Schema, // no unique key for ON CONFLICT
		"23503": Other,
		"2":     Other,
		"22":    Other,
	}
	for code, want := range tests {
		if got := SQLState(code); got != want {
			t.Errorf("%q is class %d, want %d", code, got, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ETIMEDOUT)}
	read := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	tests := []struct {
		err  error
		want Class
	}{
		{nil, Other},
		{errors.New("x"), Other},
		{context.Canceled, Other},
		{context.DeadlineExceeded, Other},
		{fmt.Errorf("x: %w", dial), Unreachable},
		{&net.DNSError{Name: "db"}, Unreachable},
		{syscall.ECONNREFUSED, Unreachable},
		{errors.New("sql: database is closed"), Unreachable},
		{sql.ErrTxDone, Conflict},
		{NotCommitted(read), Conflict},
		{read, Disconnected},
		{driver.ErrBadConn, Disconnected},
		{sql.ErrConnDone, Disconnected},
		{io.EOF, Disconnected},
		{io.ErrUnexpectedEOF, Disconnected},
		{net.ErrClosed, Disconnected},
		{syscall.EPIPE, Disconnected},
		{os.ErrDeadlineExceeded, Disconnected},
	}
	for _, test := range tests {
		if got := Network(test.err); got != test.want {
			t.Errorf("%v is class %d, want %d", test.err, got, test.want)
		}
	}
}
