#!lua
-- Stores the token that was drawn elsewhere for a grant that holds the key, and
-- proves by it that the grant has held it ever since: no other was drawn
-- meanwhile for this key's holder.
--
-- KEYS  lease, counter
-- ARGV  grant id; length in ms; token
local lease, counter = KEYS[1], KEYS[2]
local id, length, token = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('GET', lease)
if not stored or string.sub(stored, 1, #id + 1) ~= id .. ' ' then
  return 0
end
local old, rest = string.match(stored, '^%S+ (%d+) (.*)$')
if old == token then
  redis.call('PEXPIRE', lease, length) -- it ran before
  return 1
end
if tonumber(redis.call('HGET', counter, 'token') or 0) >= tonumber(token) then
  return 2
end
redis.call('HSET', counter, 'token', token)
redis.call('SET', lease, id .. ' ' .. token .. ' ' .. rest, 'PX', length)
return 1
