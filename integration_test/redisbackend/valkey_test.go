package redisbackend_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// Valkey passes the tests of this package that are about the server and not about
// the client or another database.
func TestValkey(t *testing.T) {
	t.Parallel()
	dsn := servers.Shared(t, servers.Valkey).DSN
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.shuffle=on", "-test.run=^Test(Suite|Lifecycle|Takeover|KeysAreIndependent|"+
		"Renewal|RemovedLeaseIsLost|CounterStays|NoOrphan|NoOrphanTwin|Advance|WakeUp|Hammer|RoundTrips|Partition|CancelAtRandom|LateCopyOfAcquire)$")
	command.Env = append(os.Environ(), "EXCLUSIVE_TEST_SOURCES=env", servers.Redis.Variable()+"="+dsn)
	out, err := command.CombinedOutput()
	if ran := bytes.Count(out, []byte("\n--- PASS: ")); err != nil || ran != 16 {
		t.Errorf("%d tests of 16 pass: %v\n%s", ran, err, out)
	}
}
