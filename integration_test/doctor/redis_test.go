package doctor_test

import (
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
)

func redisURL(s *rediscluster.Server) string { return "redis://" + s.Addr + "/0" }

// Servers with wrong settings; the mends are commands, which mend them.
func TestRedisSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		settings []string
		want     map[string]string
		mend     string // the check whose mend is run
	}{
		{"as it should be", []string{"--appendonly", "yes"}, map[string]string{
			"connect": "ok", "version": "ok", "writable": "ok", "clock": "ok", "connections": "ok", "replication": "ok",
			"scripts": "ok", "maxmemory-policy": "ok", "persistence": "ok", "cluster": "ok",
		}, ""},
		{"evicts", []string{"--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru"}, map[string]string{"maxmemory-policy": "fail"}, "maxmemory-policy"},
		{"would evict", []string{"--maxmemory-policy", "volatile-ttl"}, map[string]string{"maxmemory-policy": "warn"}, "maxmemory-policy"},
		{"forgets", nil, map[string]string{"persistence": "warn"}, "persistence"},
		{"goes back", []string{"--save", "900 1"}, map[string]string{"persistence": "warn"}, "persistence"},
		{"does not wait", []string{"--appendonly", "yes", "--appendfsync", "no"}, map[string]string{"persistence": "warn"}, "persistence"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := rediscluster.Start(t, c.settings...)
			f := diagnose(t, redisURL(s))
			f.want(t, c.want)
			if c.mend == "" {
				if len(f.bad()) > 0 {
					t.Errorf("%v: %+v", f.bad(), f)
				}
				return
			}
			client := s.Client(t)
			set, _, _ := strings.Cut(f[c.mend].Mend, ", and CONFIG REWRITE")
			var args []any
			for _, word := range strings.Fields(set) {
				args = append(args, word)
			}
			if err := client.Do(t.Context(), args...).Err(); err != nil {
				t.Fatalf("%s: %v", set, err)
			}
			diagnose(t, redisURL(s)).want(t, map[string]string{c.mend: "ok"})
			if keys := client.Keys(t.Context(), "*").Val(); len(keys) > 0 {
				t.Errorf("doctor has left %q behind", keys)
			}
		})
	}
}

func TestRedisReplicas(t *testing.T) {
	t.Parallel()
	primary := rediscluster.Start(t)
	replica := rediscluster.StartReplica(t, primary)
	diagnose(t, redisURL(primary)).want(t, map[string]string{"replication": "warn", "writable": "ok", "scripts": "ok"})
	f := diagnose(t, redisURL(replica))
	f.want(t, map[string]string{"writable": "fail"})
	if err := primary.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	diagnose(t, redisURL(primary)).want(t, map[string]string{"replication": "ok"})
}

// An account needs what the package's documentation lists; what it lacks is
// named, and the mend gives it.
func TestRedisAccount(t *testing.T) {
	t.Parallel()
	s := rediscluster.Start(t)
	root := s.Client(t)
	const needs = "~exclusive:* +evalsha +eval +time +get +set +del +exists +pexpire +pttl +persist +hget +hset +hincrby +ping"
	account := func(rules string) {
		t.Helper()
		args := []any{"ACL", "SETUSER", "app", "reset", "on", ">" + password}
		for rule := range strings.FieldsSeq(rules) {
			args = append(args, rule)
		}
		if err := root.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	dsn := "redis://app:" + password + "@" + s.Addr + "/0"
	for _, c := range []struct{ name, rules, status, found string }{
		{"all", needs + " &exclusive:* +publish +subscribe +unsubscribe", "ok", "acquired"},
		{"deaf", needs, "warn", "subscribe"},
		{"no scripts", strings.ReplaceAll(needs, "+eval ", ""), "fail", "eval"},
		{"no hashes", strings.ReplaceAll(needs, "+hset ", ""), "fail", "can't run this command"},
		{"other keys", strings.ReplaceAll(needs, "~exclusive:*", "~other:*"), "fail", "NOPERM"},
	} {
		account(c.rules)
		// What other clients have loaded does not matter: NOSCRIPT leads to EVAL.
		if err := root.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		f := diagnose(t, dsn)
		if got := f["scripts"]; got.Status != c.status || !strings.Contains(strings.ToLower(got.Found), strings.ToLower(c.found)) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.status == "ok" {
			continue
		}
		var args []any
		for word := range strings.FieldsSeq(f["scripts"].Mend) {
			args = append(args, word)
		}
		if err := root.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", f["scripts"].Mend, err)
		}
		diagnose(t, dsn).want(t, map[string]string{"scripts": "ok"})
	}
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes := rediscluster.StartCluster(t)
	// The key of the trial may be on any node.
	for _, node := range nodes {
		diagnose(t, redisURL(node)).want(t, map[string]string{"cluster": "ok", "scripts": "ok"})
	}
}
