-- Pass the turn on without a commit: the owner of the token leaves.
--
-- KEYS  1 turn · 2 turn:issued
-- ARGV  1 the token held · 2 the next token
-- Reply 1 (passed on) · 0 (it did not count: it was taken over, or passed on already)

for i, kind in ipairs({ 'list', 'string' }) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', KEYS[i])
  end
end
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[1])
redis.call('RPUSH', KEYS[1], ARGV[2])
return 1
