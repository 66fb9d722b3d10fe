-- Put before `archived.lua` and `trim.lua`: the version that the log entry at a place made, nil where there is none.

local function version_at(commits, place)
  local entry = redis.call('XRANGE', commits, place, place)[1]
  local fields = entry and entry[2] or {}
  for i = 1, #fields, 2 do
    if fields[i] == 'version' then
      return fields[i + 1]
    end
  end
  return nil
end

