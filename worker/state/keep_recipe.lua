-- Keep a recipe under its digest: how the commits that name it were learned. Written once, never changed.
-- A key of another type is dropped: what was under it is lost already, and must not stop the training.
--
-- KEYS  1 recipes
-- ARGV  1 digest · 2 document
-- Reply 1 (kept) · 0 (it was there)

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then
  redis.call('DEL', KEYS[1])
end
return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
