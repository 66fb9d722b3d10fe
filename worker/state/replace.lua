-- Put another state in the place of whatever is there, by a person's decision: `state reset`, `state restore`.
--
-- KEYS  1 state · 2 state:next · 3 state:previous · 4 partitions · 5 partitions:previous · 6 commits
--       7 … the key of each partition named in ARGV
-- ARGV  1 "reset" or "restore" · 2 identity of the state as it was read ("" = none, or not a string)
--       3 identity of the previous state as it was read · 4 the new state blob · 5 number of partitions (n)
--       then n times: partition number, its new blob ("" = drop it)
--       then the fields of the commit log entry, name and value by turns
-- Reply {"replaced"} · {"moved"} (someone wrote in between: read again)
--
-- A reset knows every partition ever claimed, or is refused: one left behind would keep positions of the old state.

local function identity(key)
  if redis.call('TYPE', key).ok ~= 'string' then
    return ''
  end
  return redis.call('GETRANGE', key, 0, 79)
end

if identity(KEYS[1]) ~= ARGV[2] or identity(KEYS[3]) ~= ARGV[3] then
  return { 'moved' }
end
local count, named = tonumber(ARGV[5]), {}
for i = 1, count do
  named[ARGV[4 + 2 * i]] = true
end
if ARGV[1] == 'reset' then
  if redis.call('TYPE', KEYS[4]).ok == 'set' then
    for _, number in ipairs(redis.call('SMEMBERS', KEYS[4])) do
      if not named[number] then
        return { 'moved' }
      end
    end
  end
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]) -- first: a full server has room for what follows
else
  redis.call('DEL', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[4])
for i = 1, count do
  local blob = ARGV[5 + 2 * i]
  if blob == '' then
    redis.call('DEL', KEYS[6 + i])
  else
    redis.call('SET', KEYS[6 + i], blob)
  end
end
if redis.call('TYPE', KEYS[6]).ok ~= 'stream' then
  redis.call('DEL', KEYS[6])
end
redis.call('XADD', KEYS[6], '*', unpack(ARGV, 6 + 2 * count))
return { 'replaced' }
