#!lua flags=allow-oom
-- Gives the key back if it still belongs to the grant. It frees memory, so a
-- full server takes it.
--
-- KEYS  lease, counter, waiters
-- ARGV  grant id; channel; how long in ms to keep the counter, 0 = for ever;
--       0 = in good order; 1 = the holder gave up, so that the next grant is
--       one more attempt; 2 = nobody has had it, so that it was no attempt
local lease, counter, waiters = KEYS[1], KEYS[2], KEYS[3]
local id, channel, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])

local stored = redis.call('GET', lease)
if not stored or string.sub(stored, 1, #id + 1) ~= id .. ' ' then
  if redis.call('HGET', counter, 'done') == id then
    return {1} -- it ran before and its answer was lost
  end
  return {0, stored}
end
-- After a release in good order the next grant is a first attempt again. This
-- comes before DEL, for the same reason as in acquire: what fails here leaves
-- the lease as it was.
redis.call('HSET', counter, 'done', id)
if ARGV[4] == '0' then
  redis.call('HSET', counter, 'attempt', 0)
elseif ARGV[4] == '2' and tonumber(redis.call('HGET', counter, 'attempt') or 0) > 0 then
  redis.call('HINCRBY', counter, 'attempt', -1)
end
if keep > 0 then
  redis.call('PEXPIRE', counter, keep)
end
redis.call('DEL', lease)
-- Only when somebody waits. pcall: a user who may not publish loses wake-ups,
-- which are optional, and not the release.
if redis.call('EXISTS', waiters) == 1 then
  redis.pcall('PUBLISH', channel, '')
end
return {1}
