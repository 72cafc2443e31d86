-- Enters a gateway in the list of those that count together. KEYS[1] is the list, ordered by when
-- each was heard last. ARGV: gateway, microseconds after which one counts as gone, and 1 where it
-- leaves. Answer: how many there are.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now - ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now + ARGV[2]), '+inf')
if ARGV[3] == '1' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
  redis.call('EXPIRE', KEYS[1], 60)
end
return redis.call('ZCARD', KEYS[1])
