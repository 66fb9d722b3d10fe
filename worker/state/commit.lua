-- One commit: the staged state and the touched partitions become current together, or nothing is written.
-- It runs inside the transaction that staged the state, and the staged key never outlives it.
--
-- KEYS  1 state · 2 state:next (staged) · 3 state:previous · 4 partitions · 5 partitions:previous · 6 commits
--       then one partition key for each touched partition, then recipes, turn, turn:issued
-- ARGV  1 identity that the state must have now · 2 identity of the staged state
--       3 digest of a recipe that has to be kept ("" = none) · 4 token of the turn to pass on ("" = none) · 5 the next
--       token · 6 number of touched partitions (t)
--       then t times: partition number, identity it must have now ("" = no such key), its new blob
--       then the fields of the commit log entry, name and value by turns
-- Reply {"applied"} · {"type", key} · {"unstaged"} · {"differs", identity of the state, of each touched partition …}
--       {"recipe"} (it is not kept, or was lost: keep it, and commit again)
--
-- Everything is checked before the first write, because Redis does not undo what a script has written. The turn is no
-- reason to refuse anything: what is wrong with its keys is dropped, and whoever asks next makes them anew.

local IDENTITY = 79 -- last byte of magic and version (or fence)
local touched = tonumber(ARGV[6])
local recipes, turn, issued = KEYS[7 + touched], KEYS[8 + touched], KEYS[9 + touched]

local function finish(reply)
  redis.call('DEL', KEYS[2])
  return reply
end

local function drop_other(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', key)
  end
end

-- Only the token that counts is passed on, and then it counts no more.
local function pass_on(token, following)
  if token == '' then
    return
  end
  drop_other(turn, 'list')
  drop_other(issued, 'string')
  if redis.call('GET', issued) == token then
    redis.call('SET', issued, following)
    redis.call('DEL', turn)
    redis.call('RPUSH', turn, following)
  end
end

local wanted = { 'string', 'string', 'string', 'set', 'hash', 'stream' }
for i = 1, 6 + touched do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= (wanted[i] or 'string') then
    return finish({ 'type', KEYS[i] })
  end
end

local state = redis.call('GETRANGE', KEYS[1], 0, IDENTITY)
local seen, expected, mine = { 'differs', state }, state == ARGV[1], true
for i = 1, touched do
  local at = 6 + 3 * (i - 1)
  local now = redis.call('GETRANGE', KEYS[6 + i], 0, IDENTITY)
  seen[2 + i] = now
  expected = expected and now == ARGV[at + 2]
  mine = mine and now == string.sub(ARGV[at + 3], 1, IDENTITY + 1)
end
if mine then -- this very commit was applied before, and passed the turn on; its reply was lost
  return finish({ 'applied' })
end
if not expected then
  return finish(seen)
end
if redis.call('GETRANGE', KEYS[2], 0, IDENTITY) ~= ARGV[2] then
  return finish({ 'unstaged' })
end
if ARGV[3] ~= '' and (redis.call('TYPE', recipes).ok ~= 'hash' or redis.call('HEXISTS', recipes, ARGV[3]) == 0) then
  return finish({ 'recipe' })
end

redis.call('RENAME', KEYS[1], KEYS[3])
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('DEL', KEYS[5])
for i = 1, touched do
  local at = 6 + 3 * (i - 1)
  redis.call('HSET', KEYS[5], ARGV[at + 1], redis.call('GET', KEYS[6 + i]) or '')
  redis.call('SET', KEYS[6 + i], ARGV[at + 3])
  redis.call('SADD', KEYS[4], ARGV[at + 1])
end
redis.call('XADD', KEYS[6], '*', unpack(ARGV, 7 + 3 * touched))
pass_on(ARGV[4], ARGV[5])
return { 'applied' }
