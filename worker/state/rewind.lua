-- Put a state of earlier back, with the positions of that moment, as one logged commit: `train rollback`.
--
-- KEYS  1 state · 2 state:next · 3 state:previous · 4 partitions · 5 partitions:previous · 6 commits
--       7 … the key of each partition named in ARGV
-- ARGV  1 identity of the state as it was read ("" = none, or not a string) · 2 the new state blob
--       3 "keep" (what is there now becomes the previous state) or "drop" (it is damaged) · 4 number of partitions (n)
--       then n times: partition number, identity as it was read, its new blob
--       then the fields of the commit log entry, name and value by turns
-- Reply {"rewound"} · {"moved"} (someone wrote in between: read again)
--
-- Every partition ever claimed is named, or nothing is done: one left behind would keep positions of what is undone.

local function identity(key)
  if redis.call('TYPE', key).ok ~= 'string' then
    return ''
  end
  return redis.call('GETRANGE', key, 0, 79)
end

if identity(KEYS[1]) ~= ARGV[1] then
  return { 'moved' }
end
local count, named = tonumber(ARGV[4]), {}
for i = 1, count do
  local at = 2 + 3 * i
  named[ARGV[at]] = true
  if identity(KEYS[6 + i]) ~= ARGV[at + 1] then
    return { 'moved' }
  end
end
if redis.call('TYPE', KEYS[4]).ok == 'set' then
  for _, number in ipairs(redis.call('SMEMBERS', KEYS[4])) do
    if not named[number] then
      return { 'moved' }
    end
  end
else
  redis.call('DEL', KEYS[4])
end

redis.call('DEL', KEYS[2], KEYS[3], KEYS[5])
local keep = ARGV[3] == 'keep'
if keep then
  redis.call('RENAME', KEYS[1], KEYS[3])
end
for i = 1, count do
  local at = 2 + 3 * i
  if keep then
    redis.call('HSET', KEYS[5], ARGV[at], identity(KEYS[6 + i]) ~= '' and redis.call('GET', KEYS[6 + i]) or '')
  end
  redis.call('SET', KEYS[6 + i], ARGV[at + 2])
  redis.call('SADD', KEYS[4], ARGV[at])
end
redis.call('SET', KEYS[1], ARGV[2])
if redis.call('TYPE', KEYS[6]).ok ~= 'stream' then
  redis.call('DEL', KEYS[6])
end
redis.call('XADD', KEYS[6], '*', unpack(ARGV, 5 + 3 * count))
return { 'rewound' }
