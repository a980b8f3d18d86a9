#!lua
-- Takes the key if it is free. No flags: a replica, a server out of memory and
-- one that cannot persist refuse the whole script, before it has read anything.
--
-- KEYS  lease, counter, waiters
-- ARGV  grant id; length in ms; holder's name; largest token;
--       1 = count the tokens here, 0 = they come from elsewhere;
--       how long in ms to remember that somebody waits, 0 = nobody does
local lease, counter, waiters = KEYS[1], KEYS[2], KEYS[3]
local id, length, holder, most, count, wait = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])

local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
local stored = redis.call('GET', lease)
if stored then
  if string.sub(stored, 1, #id + 1) == id .. ' ' then
    -- This script ran before and its answer was lost: the same answer again,
    -- and no other token.
    redis.call('PEXPIRE', lease, length)
    return {1, stored}
  end
  if wait > 0 then
    redis.call('SET', waiters, '1', 'PX', wait)
  end
  return {0, stored, now, redis.call('PTTL', lease)}
end

-- This grant has had the key, and given it back or lost it to an operator: a late
-- copy of this script must not revive it.
if redis.call('HGET', counter, 'done') == id or redis.call('HGET', counter, 'freed') == id then
  return {3}
end

-- A script that fails half way is not rolled back, so the lease is written last:
-- nothing that comes before it can leave a key that nobody holds.
local token = 0
if count == '1' then
  -- Numbers of Lua are exact up to 2^53. Tokens end long before.
  if tonumber(redis.call('HGET', counter, 'token') or 0) >= most then
    return {2}
  end
  token = redis.call('HINCRBY', counter, 'token', 1)
else
  redis.call('PERSIST', counter)
end
local attempt = redis.call('HINCRBY', counter, 'attempt', 1)
local value = id .. ' ' .. string.format('%.0f %.0f ', token, attempt) .. now .. ' ' .. holder
redis.call('SET', lease, value, 'PX', length)
return {1, value}
