package mysqldb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/exclusive-go/exclusive/internal/db"
)

func TestClassify(t *testing.T) {
	server := func(n uint16) error { return fmt.Errorf("x: %w", &mysql.MySQLError{Number: n}) }
	tests := []struct {
		err  error
		want db.Class
	}{
		{nil, db.Other},
		{errors.New("x"), db.Other},
		{context.DeadlineExceeded, db.Other},
		{server(1064), db.Syntax},
		{server(1213), db.Conflict},
		{server(1020), db.Conflict},
		{server(3101), db.Conflict},
		{server(1205), db.Locked},
		{server(3572), db.Locked},
		{server(3024), db.Timeout},
		{server(1969), db.Timeout},
		{server(1317), db.Timeout},
		{server(1290), db.ReadOnly},
		{server(1792), db.ReadOnly},
		{server(1836), db.ReadOnly},
		{server(1045), db.Denied},
		{server(1142), db.Denied},
		{server(1146), db.Schema},
		{server(1054), db.Schema},
		{server(4091), db.Schema},
		{server(1062), db.Duplicate},
		{server(1406), db.Data},
		{mysql.ErrPktTooLarge, db.Data},
		{server(1040), db.Unreachable},
		{server(1047), db.Unreachable},
		{server(1053), db.Disconnected},
		{server(1927), db.Disconnected},
		{mysql.ErrInvalidConn, db.Disconnected},
		{driver.ErrBadConn, db.Disconnected},
		{io.ErrUnexpectedEOF, db.Disconnected},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, db.Unreachable},
		{db.NotCommitted(server(errNoSuchSavepoint)), db.Conflict},
	}
	for _, test := range tests {
		if got := new(DB).Classify(test.err); got != test.want {
			t.Errorf("%v is class %d, want %d", test.err, got, test.want)
		}
	}
}

func TestNilPool(t *testing.T) {
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "nil") {
			t.Errorf("recovered %q", got)
		}
	}()
	New(nil)
}
