-- Note how far the commit log is in the artifact store: only where that entry is still the one that was put there.
--
-- KEYS  1 commits · 2 archived
-- ARGV  1 place of the entry · 2 the version it made
-- Reply {"noted"} · {"moved"} (the log is another one now: it went back, or was reset)

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then
  return { 'moved' }
end
if version_at(KEYS[1], ARGV[1]) ~= ARGV[2] then
  return { 'moved' }
end
redis.call('SET', KEYS[2], ARGV[1])
return { 'noted' }
