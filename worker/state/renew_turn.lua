-- Make a new token in the place of one that does not move: its holder is dead, stopped, or very slow; or none is there.
-- Whoever finds that out gets it at once. Put in line, it could be handed to the next one that is dead.
--
-- KEYS  1 turn · 2 turn:issued
-- ARGV  1 the token that was seen not to move ("" = there was none) · 2 the new token
-- Reply {token, token} (taken) · {"", the token that counts} (somebody has moved it in between)

for i, kind in ipairs({ 'list', 'string' }) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', KEYS[i])
  end
end
local issued, free = redis.call('GET', KEYS[2]), redis.call('LPOP', KEYS[1])
redis.call('DEL', KEYS[1])
if issued and free == issued then -- it lay there, and nobody was in line for it
  return { issued, issued }
end
if issued and issued ~= ARGV[1] then
  return { '', issued }
end
redis.call('SET', KEYS[2], ARGV[2])
return { ARGV[2], ARGV[2] }
