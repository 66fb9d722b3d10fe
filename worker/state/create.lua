-- The first state of a model. Never beside traces of an earlier one: those mean that a state was lost.
--
-- KEYS  1 state · 2 state:previous · 3 partitions · 4 commits
-- ARGV  1 the state blob · 2 … fields of the commit log entry, name and value by turns
-- Reply {"created"} · {"exists", identity of the state} · {"type", key} · {"traces", key}

local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  return { 'exists', redis.call('GETRANGE', KEYS[1], 0, 79) }
end
if kind ~= 'none' then
  return { 'type', KEYS[1] }
end
for i = 2, 4 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    return { 'traces', KEYS[i] }
  end
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[4], '*', unpack(ARGV, 2))
return { 'created' }
