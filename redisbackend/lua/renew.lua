#!lua flags=allow-oom
-- Extends the lease if it still belongs to the grant. It needs no memory, so a
-- full server does not end leases.
--
-- KEYS  lease
-- ARGV  grant id; length in ms
local stored = redis.call('GET', KEYS[1])
if stored and string.sub(stored, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
