#!lua
-- Makes the next token greater than the given one. Running it twice does no harm.
--
-- KEYS  counter
-- ARGV  token
if tonumber(redis.call('HGET', KEYS[1], 'token') or 0) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
end
return 1
