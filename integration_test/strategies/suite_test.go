package strategies_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

func TestMain(m *testing.M) { strategies.Main(m) }

// The suite, with the stories and their twins, on every strategy and driver.
// What a strategy does not promise is skipped, and said.
func TestSuite(t *testing.T) {
	matrix.Drivers(t, strategies.Each(testSuite[pgx.Tx]), strategies.Each(testSuite[*sql.Tx]))
}

func testSuite[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{})
	if p := x.Promises(); p != s.Promises {
		t.Errorf("it promises %v; want %v", p, s.Promises)
	}
	exclusivetest.RunTransactional(t, func(t *testing.T) exclusivetest.TxBackend[Tx] {
		return exclusivetest.TxBackend[Tx]{
			New: func(cfg exclusivetest.Config) (exclusive.Transactional[Tx], error) {
				return place.New(t, target, cfg), nil
			},
			Key: place.Key, InTx: place.InTx, Write: place.Write, Read: place.Read,
			BackUpIssuer: place.BackUpIssuer, BackUpDestination: place.BackUpDestination,
		}
	})
}
