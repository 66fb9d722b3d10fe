-- Remove from the commit log what is in the artifact store, and never more: the bound is the place that was noted here,
-- and it has to be an entry of this very log. That entry stays, so the log is never empty and keeps its last version.
--
-- KEYS  1 commits · 2 archived
-- ARGV  1 the version that the archive ends with · 2 how many entries to remove at most, about
-- Reply {"trimmed", number} · {"moved"} (nothing is noted, or the log is another one now)

if redis.call('TYPE', KEYS[1]).ok ~= 'stream' or redis.call('TYPE', KEYS[2]).ok ~= 'string' then
  return { 'moved' }
end
local place = redis.call('GET', KEYS[2])
if version_at(KEYS[1], place) ~= ARGV[1] then
  return { 'moved' }
end
local removed = redis.call('XTRIM', KEYS[1], 'MINID', '~', place, 'LIMIT', ARGV[2]) -- whole nodes: quick
if removed == 0 then
  removed = redis.call('XTRIM', KEYS[1], 'MINID', '=', place) -- the rest of one node
end
return { 'trimmed', removed }
