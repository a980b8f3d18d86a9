package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Galera is Own on a cluster of two MariaDB servers that both take writes: a DSN of
// the same database for each. It runs server programs, of this machine or of a Debian
// root; the test is skipped where only containers are to be had.
func Galera(t testing.TB) (dsns [2]string) {
	t.Helper()
	sources, err := sourcesFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, func(s Source) bool { return s != Program && s != Debian })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cluster := "gcomm://" // the first node makes it
	var first, last *Server
	for i := range dsns {
		group, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		options, err := nodeOptions(cluster, group)
		if err != nil {
			t.Fatal(err)
		}
		server, err := startFrom(ctx, MariaDB, sources, options...)
		if missing := new(MissingError); errors.As(err, &missing) {
			t.Skipf("a Galera cluster needs server programs: %v", err)
		}
		if err != nil {
			t.Fatalf("node %d of a Galera cluster: %v", i+1, err)
		}
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Errorf("ending node %d of a Galera cluster: %v", i+1, err)
			}
		})
		last = server
		if first == nil {
			first = server
			cluster = fmt.Sprintf("gcomm://127.0.0.1:%d", group)
		}
		dsns[i] = server.DSN
	}
	name := newName()
	if err := administer(first, createDatabase, name); err != nil {
		t.Fatalf("creating a database on a Galera cluster: %v", err)
	}
	if err := administer(last, awaitDatabase, name); err != nil {
		t.Fatalf("waiting for a database of a Galera cluster: %v", err)
	}
	for i, dsn := range dsns {
		if dsns[i], err = withDatabase(&Server{Kind: MariaDB, DSN: dsn}, name); err != nil {
			t.Fatal(err)
		}
	}
	return dsns
}

// awaitDatabase waits until a node knows what was made on another.
func awaitDatabase(ctx context.Context, db *sql.DB, _ Kind, name string) error {
	for known := 0; known == 0; time.Sleep(2 * time.Millisecond) {
		err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name).Scan(&known)
		if err != nil {
			return err
		}
	}
	return nil
}

// nodeOptions are those of a node that joins the cluster, or makes one, and speaks to
// the others on the port group (MariaDB manual, "Galera Cluster System Variables").
func nodeOptions(cluster string, group int) ([]string, error) {
	transfer, err := freePort()
	if err != nil {
		return nil, err
	}
	state, err := freePort()
	if err != nil {
		return nil, err
	}
	return []string{
		"--wsrep-on=ON", "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
		"--wsrep-cluster-name=exclusive", "--wsrep-cluster-address=" + cluster, "--wsrep-node-address=127.0.0.1",
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", // it takes no others
		"--innodb-lock-wait-timeout=600", // a cluster that stands still goes on after that: not within a test
		"--wsrep-sst-method=rsync", fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", state),
		"--wsrep-provider-options=" + strings.Join([]string{
			fmt.Sprintf("base_port=%d", group),
			fmt.Sprintf("gmcast.listen_addr=tcp://127.0.0.1:%d", group),
			fmt.Sprintf("ist.recv_addr=127.0.0.1:%d", transfer),
			"gcache.size=16M",
			// A node of a busy machine that says nothing for 5 s is not to be put out.
			"evs.suspect_timeout=PT60S", "evs.inactive_timeout=PT120S",
		}, ";"),
	}, nil
}
