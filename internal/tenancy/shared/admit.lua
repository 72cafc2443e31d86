-- Counts one account for all gateways. KEYS[1] is the account's hash:
--   at                   when it was counted last, in microseconds of this server's clock
--   requests, tokens     what is left of the minute
--   day, renewed, epoch  the day of the budget, when it began, and a number of its own for it
--   used                 tokens of the day
--   d:GATEWAY            those of them that a gateway has reported
--   n:GATEWAY            its requests under way, a space, and when it reported them
-- ARGV: gateway, microseconds after which a gateway counts as gone, the limits (requests at
-- once, requests a minute, tokens a minute, tokens a day; 0: none), and what the gateway reports
-- and asks: requests under way, requests wanted, requests that began without this count, tokens
-- for the minute, day and epoch in which it counts, tokens of that day.
-- Answer: requests granted, which limit refuses the others, microseconds after which to ask
-- again, requests of other gateways, thousandths left of both minutes, tokens of the day, day,
-- epoch, this gateway's tokens of the day.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local today = math.floor(now / 86400000000)
local had, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do had[flat[i]] = flat[i + 1] end
local me, silent = ARGV[1], tonumber(ARGV[2])
local most, perMinute, tokensPerMinute, perDay = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local running, want, took, paid = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local itsDay, itsEpoch, total = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local gone = {}

local others = 0
for field, value in pairs(had) do
  if string.sub(field, 1, 2) == 'n:' and field ~= 'n:' .. me then
    local n, seen = string.match(value, '^(%d+) (%d+)$')
    if n == nil or math.abs(now - seen) > silent then gone[#gone + 1] = field else others = others + n end
  end
end

-- A clock that is set far ahead and back begins a day once, as gateways' own do: not sooner than
-- 23 hours after the last one.
local day, renewed, epoch, used = tonumber(had.day), tonumber(had.renewed), tonumber(had.epoch), tonumber(had.used)
if epoch == nil then
  day, renewed, epoch, used = today, 0, now, 0
elseif today > day and (renewed == 0 or now - renewed >= 82800000000 or now < renewed) then
  day, renewed, epoch, used = today, now, now, 0
  for field in pairs(had) do
    if string.sub(field, 1, 2) == 'd:' then gone[#gone + 1] = field; had[field] = nil end
  end
elseif today < day then
  day = today
end
local mine = tonumber(had['d:' .. me]) or 0
if itsEpoch == epoch or (itsDay == day and had['d:' .. me] == nil) then
  used = used + total - mine
  mine = total
end

-- A rate that was not limited before begins full. Time that runs backwards gives nothing.
local minutes = math.max(0, now - (tonumber(had.at) or now)) / 60000000
local function left(limit, value, spent)
  if limit == 0 then return 0 end
  return math.min(limit, (tonumber(value) or limit) + minutes * limit - spent)
end
local requests, tokens = left(perMinute, had.requests, took), left(tokensPerMinute, had.tokens, paid)

local granted, reason, after = want, 0, 0
local function refuse(to, why, wait)
  if to < granted then granted, reason, after = to, why, wait end
end
if most > 0 then refuse(math.max(0, most - others - running), 1, 0) end
if perDay > 0 and used >= perDay then refuse(0, 2, (today + 1) * 86400000000 - now) end
if tokensPerMinute > 0 and tokens < 1 then refuse(0, 3, (1 - tokens) / tokensPerMinute * 60000000) end
if perMinute > 0 then
  local may = math.max(0, math.floor(requests))
  refuse(may, 4, (1 - (requests - may)) / perMinute * 60000000)
  requests = requests - granted
end

if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
local function number(n) return string.format('%.6f', n) end
local function whole(n) return string.format('%.0f', n) end
redis.call('HSET', KEYS[1], 'at', whole(now), 'requests', number(requests), 'tokens', number(tokens),
  'day', whole(day), 'renewed', whole(renewed), 'epoch', whole(epoch), 'used', whole(used),
  'd:' .. me, whole(mine), 'n:' .. me, whole(running + granted) .. ' ' .. whole(now))
redis.call('EXPIRE', KEYS[1], 172800) -- longer than a day's budget
return {granted, reason, math.ceil(after), others, math.floor(requests * 1000), math.floor(tokens * 1000), used, day, epoch, mine}
