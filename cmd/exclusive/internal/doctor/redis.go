package doctor

import (
	"fmt"
	"strings"
)

var onRedis = []string{redis}

var redisChecks = []Check{
	{
		ID: "scripts", Title: "The account may do what the scripts do", On: onRedis,
		Why: "Acquire, renewal and release are scripts, and a command that is refused inside one fails it. Without SUBSCRIBE and PUBLISH all works, and waiters poll. They are tried for real, on a key of doctor's own that is removed.",
		Outcomes: []Outcome{
			{Name: "may", Status: OK, When: "a lease was acquired, renewed and released, and its release was heard"},
			{Name: "deaf", Status: Warn, When: "all but publish and subscribe", Mend: "ACL SETUSER {account} &{prefix}* +publish +subscribe +unsubscribe"},
			{Name: "refused", Status: Fail, When: "something else was refused", Mend: "ACL SETUSER {account} ~{prefix}* &{prefix}* +evalsha +eval +time +get +set +del +exists +pexpire +pttl +persist +hget +hset +hincrby +publish +subscribe +unsubscribe +ping"},
		},
		needs: "@trial",
		judge: func(f *Facts) (string, string) {
			switch f.get("@trial") {
			case "may":
				return "may", "a lease was acquired, renewed and released"
			case "deaf":
				return "deaf", f.get("@trial_error")
			}
			return "refused", f.get("@trial_error")
		},
	},
	{
		ID: "maxmemory-policy", Title: "Nothing is evicted", On: onRedis,
		Why: "A lease that is evicted is a key with two holders, and a counter that is evicted begins again at 1: a guard then refuses the right holder until it is raised. A full server without eviction refuses new leases, and keeps renewing the ones there are.",
		Outcomes: []Outcome{
			{Name: "kept", Status: OK, When: "noeviction"},
			{Name: "unlimited", Status: Warn, When: "another policy, and no maxmemory yet", Mend: "CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE"},
			{Name: "evicted", Status: Fail, When: "another policy, with maxmemory set", Mend: "CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE; or a Redis of its own for locks"},
		},
		needs: "maxmemory_policy",
		judge: func(f *Facts) (string, string) {
			found := fmt.Sprintf("maxmemory-policy is %s, maxmemory %s", f.get("maxmemory_policy"), f.get("maxmemory"))
			switch {
			case f.is("maxmemory_policy", "noeviction"):
				return "kept", found
			case f.number("maxmemory") == 0:
				return "unlimited", found
			}
			return "evicted", found
		},
	},
	{
		ID: "persistence", Title: "A restart keeps leases and counters", On: onRedis,
		Why: "What a restart loses is free again, and counters begin at an older number: two holders, and equal tokens. fencing.Guarded refuses what comes of it; the lease alone does not.",
		Outcomes: []Outcome{
			{Name: "log", Status: OK, When: "appendonly, with appendfsync always or everysec (which may lose a second)"},
			{Name: "unsynced", Status: Warn, When: "appendonly, with appendfsync no", Mend: "CONFIG SET appendfsync everysec, and CONFIG REWRITE"},
			{Name: "snapshots", Status: Warn, When: "snapshots (save) only: a restart goes back to the last one", Mend: "CONFIG SET appendonly yes, and CONFIG REWRITE"},
			{Name: "none", Status: Warn, When: "neither: a restart loses all", Mend: "CONFIG SET appendonly yes, and CONFIG REWRITE"},
		},
		needs: "aof_enabled",
		judge: func(f *Facts) (string, string) {
			switch {
			case f.on("aof_enabled") && f.is("appendfsync", "no"):
				return "unsynced", "appendonly is yes, appendfsync no"
			case f.on("aof_enabled"):
				return "log", strings.TrimSpace("appendonly is yes, appendfsync " + f.get("appendfsync"))
			case f.get("save") != "":
				return "snapshots", fmt.Sprintf("appendonly is no, save %q", f.get("save"))
			case !f.known("save"):
				return "snapshots", "appendonly is no; whether there are snapshots cannot be read"
			}
			return "none", "appendonly is no, and save is empty"
		},
	},
	{
		ID: "cluster", Title: "Redis Cluster", On: onRedis,
		Why: "Lease and counter of a key share a slot by their hash tag. A cluster that does not serve all slots refuses the keys of the others (ErrUnavailable).",
		Outcomes: []Outcome{
			{Name: "none", Status: OK, When: "a single server, with or without replicas"},
			{Name: "whole", Status: OK, When: "a cluster in state ok: use redis.NewClusterClient"},
			{Name: "broken", Status: Fail, When: "a cluster in another state", Mend: "bring the nodes of the missing slots back: redis-cli --cluster check"},
		},
		judge: func(f *Facts) (string, string) {
			switch {
			case !f.on("cluster_enabled"):
				return "none", "no cluster"
			case !f.known("cluster_state"):
				return f.missing("cluster_state")
			case f.is("cluster_state", "ok"):
				return "whole", fmt.Sprintf("a cluster of %s nodes, state ok", f.get("cluster_known_nodes"))
			}
			return "broken", "cluster_state is " + f.get("cluster_state")
		},
	},
}
