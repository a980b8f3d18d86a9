#!lua flags=allow-oom
-- Takes the key from a grant, if it still has it. Unlike a release it leaves no
-- trace of the grant as one that was given back: its holder has lost it. The
-- counter stays, so the next token is greater, and the next grant is one more
-- attempt. If another has the key it answers who, and until when.
--
-- KEYS  lease, counter, waiters
-- ARGV  grant id; channel; how long in ms to keep the counter, 0 = for ever
local lease, counter, waiters = KEYS[1], KEYS[2], KEYS[3]
local id, channel, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])

local stored = redis.call('GET', lease)
if not stored or string.sub(stored, 1, #id + 1) ~= id .. ' ' then
  if redis.call('HGET', counter, 'freed') == id then
    return {1} -- it ran before and its answer was lost
  end
  if not stored then
    return {0}
  end
  local clock = redis.call('TIME')
  return {0, stored, string.format('%.0f', clock[1] * 1000000 + clock[2]), redis.call('PTTL', lease)}
end
redis.call('HSET', counter, 'freed', id)
if keep > 0 then
  redis.call('PEXPIRE', counter, keep)
end
redis.call('DEL', lease)
if redis.call('EXISTS', waiters) == 1 then
  redis.pcall('PUBLISH', channel, '')
end
return {1}
