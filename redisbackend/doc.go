// Package redisbackend hands out leases with rising tokens that are stored in
// Redis 7 or later, or Valkey: a lease and its token come from one script.
// [fencing.Guard] and [fencing.Guarded] add the check at the place where
// results are stored, which Redis cannot give.
//
// # Promise
//
// OneWinner and TimeBound: of all who try a free key one gets it, and nobody
// else gets it before [exclusive.Grant].Expires. Tokens rise with every grant of
// a key. All of this holds as long as the server keeps what it has confirmed.
//
// With fencing.Guarded a stale write is refused at the destination whatever
// Redis loses: a grant whose token is too low is refused before its work
// begins, the counter is raised to the destination's mark, and a new grant is
// drawn.
//
// # Not promised
//
//   - A holder that is paused past Expires may overlap with the next one. Only a
//     guard at the destination stops what it writes then.
//   - Redis replicates after it has answered. A failover can lose the newest
//     leases and counts: two holders at once, with equal tokens. The guard
//     refuses the second grant of an equal token. min-replicas-to-write makes
//     it rarer, not impossible. A restart without persistence, a flush, or
//     eviction (any maxmemory-policy but noeviction) loses them too.
//   - A primary that is cut off, but still reachable by its clients, hands out
//     keys until it notices.
//   - The counter of a key stays for ever, as one small hash, since its expiry
//     would let tokens begin again. With Config.Tokens it goes ten minutes after
//     the last release.
//   - redis.Ring moves keys to other servers when its set of servers changes,
//     and then forgets leases.
//
// # State machine
//
//	free ──acquire──▶ held (token+1, attempt+1)
//	held ──renew────▶ held
//	held ──release──▶ free (attempt = 0)
//	held ──failed───▶ free (attempt stays: the next grant's is 2 or more)
//	held ──TTL──────▶ free (attempt stays)
//
// Failed: work returned an error, panicked or called runtime.Goexit.
//
// # Failures
//
//	what happens                            what the caller gets
//	somebody has the key                    ErrHeld, with the holder
//	the holder vanishes                     the key is free when its TTL has passed
//	a renewal fails                         it is repeated; ErrLost when the time is over
//	the server forgets the lease            ErrLost at the next renewal
//	the acquire's answer is lost            the client's retry gets the same token again;
//	                                        after the last one, however that ended, the key is
//	                                        given back in the background, when the server is
//	                                        back, which is no attempt; the error is ErrUnavailable
//	ctx ends while the server is silent     the context's error, at once; the key is given back
//	                                        in the background
//	the release's answer is lost            the retry finds its own trace: nil
//	ctx ends before a release has an        the context's error, at once; it goes on in the
//	  answer                                background, while the server is away too
//	replica, loading, out of memory, disk   ErrUnavailable, with what to do; work did not run
//	  full, ACL, password, cluster down
//	the counter holds something else        ErrUnavailable; no lease is left behind
//	the token source fails                  its error or ErrUnavailable; the key is given back
//
// # Cost
//
// Acquire and release are one round trip each, and so is a refusal. Renewal is
// one pipeline for all leases of a process (one to each node of a cluster). No
// connection is held between calls. Waiters share one connection to listen on,
// opened when the first of a process has to wait; they poll as well, at most
// every 250 ms. A release publishes only when somebody waits. With Config.Tokens
// an acquire has two more steps: the draw, and one round trip to store the token.
//
// # What is stored
//
// For each key, in one slot of a cluster (the key's braces and percent signs
// are written as %7B, %7D and %25):
//
//	exclusive:{key}:lease    string "id token attempt since holder", expires with the lease
//	exclusive:{key}:counter  hash: token, attempt, done (the last grant
//	                         given back), freed (the last one that an operator took away)
//	exclusive:{key}:waiters  string, exists for a second after somebody had to wait
//	exclusive:{key}:free     channel
//
// An ACL user needs:
//
//	~exclusive:* &exclusive:*
//	+evalsha +eval +time +get +set +del +exists +pexpire +pttl +persist
//	+hget +hset +hincrby +publish +subscribe +unsubscribe +ping
//
// An operator who calls List also needs +scan. On a cluster all need
// +cluster|slots +cluster|shards +command. Without publish and
// subscribe all works but the wake-up.
package redisbackend
