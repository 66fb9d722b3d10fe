-- Take a partition over: write it under a fresh fence if its fence is still the expected one.
--
-- KEYS  1 state · 2 the partition · 3 partitions
-- ARGV  1 partition number · 2 identity it must have now ("" = no such key) · 3 its new blob
-- Reply {"claimed"} · {"differs"} · {"missing"} (there is no state: nothing may grow beside a lost one) · {"type", key}

local wanted = { 'string', 'string', 'set' }
for i = 1, 3 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= wanted[i] then
    return { 'type', KEYS[i] }
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return { 'missing' }
end
if redis.call('GETRANGE', KEYS[2], 0, 79) ~= ARGV[2] then
  return { 'differs' }
end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1])
return { 'claimed' }
