package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// A server that cannot tell how long a statement has waited is refused by those whose
// claims go by that, before anything is stored. The others work there.
func TestSysdateIsNow(t *testing.T) {
	t.Parallel()
	for _, kind := range []servers.Kind{servers.MySQL, servers.MariaDB} {
		// A claim of fencing does not wait on MariaDB.
		refusals := map[string]bool{"casupdate": false, "casupdate_leased": false, "rowlock": false, "uniquetask": true, "fencing": kind == servers.MySQL}
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			target := matrix.OnSQL(t, matrix.Address{Name: string(kind), DSN: servers.Own(t, kind, "--sysdate-is-now")})
			if n := target.Int(t, "SELECT SLEEP(0.01) + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"); n != 0 {
				t.Fatalf("the option has no effect: SYSDATE is %d microseconds past NOW", n)
			}
			for _, s := range strategies.All[*sql.Tx]() {
				refused, play := refusals[s.Name]
				if !play {
					continue
				}
				delete(refusals, s.Name)
				place := s.SetUp(t, target)
				key, ran := place.MustKey(t), false
				err := place.New(t, target, exclusivetest.Config{}).Do(t.Context(), key, func(context.Context, exclusive.Grant) error { ran = true; return nil })
				if !refused {
					if err != nil || !ran {
						t.Errorf("%s: %v, ran %v", s.Name, err, ran)
					}
					continue
				}
				stored := target.Int(t, "SELECT (SELECT COUNT(*) FROM exclusive_lease) + (SELECT COUNT(*) FROM exclusive_task)")
				if !errors.Is(err, exclusive.ErrUnsupported) || !strings.Contains(err.Error(), "--sysdate-is-now") || ran || stored != 0 {
					t.Errorf("%s: %v, ran %v, %d rows; want it refused", s.Name, err, ran, stored)
				}
			}
			if len(refusals) != 0 {
				t.Errorf("these were not played: %v", refusals)
			}
		})
	}
}
