-- Say that a worker is alive; forget those that have been silent. Times are the server's, so clocks need not agree.
-- No key gets a time to live: a policy that evicts such keys would have something of ours to take.
--
-- KEYS  1 workers
-- ARGV  1 worker · 2 what it says (JSON) · 3 milliseconds for which that holds
-- Reply number of workers that are alive

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local until_ms = tonumber(string.match(all[i + 1], '^(%d+) ') or '0')
  if until_ms < now_ms then
    redis.call('HDEL', KEYS[1], all[i])
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now_ms + ARGV[3], ARGV[2]))
return redis.call('HLEN', KEYS[1])
