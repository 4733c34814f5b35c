-- Hands verified claims to the native module as JSON, where no client can write: Envoy lets
-- modules read only the first level of metadata, and claims are on the second.
local JWT = "envoy.filters.http.jwt_authn"
local function json(value)
  if type(value) == "string" then
    local function escaped(char) return string.format("\\u%04x", char:byte()) end
    return '"' .. value:gsub('[%c"\\]', escaped) .. '"'
  elseif type(value) == "number" then
    return string.format("%.17g", value)
  elseif type(value) ~= "table" then
    return tostring(value == true)
  end
  local members, last = {}, 0
  for key, member in pairs(value) do
    if type(key) == "number" then
      last = math.max(last, key)
    else
      members[#members + 1] = json(key) .. ":" .. json(member)
    end
  end
  if last == 0 then return "{" .. table.concat(members, ",") .. "}" end
  -- A list. Lua keeps no element that is null.
  for i = 1, last do
    members[i] = value[i] == nil and "null" or json(value[i])
  end
  return "[" .. table.concat(members, ",") .. "]"
end
function envoy_on_request(request)
  local metadata = request:streamInfo():dynamicMetadata()
  local verified = metadata:get(JWT)
  if type(verified) == "table" then
    metadata:set("quotagate.metadata", JWT, json(verified))
  end
end
