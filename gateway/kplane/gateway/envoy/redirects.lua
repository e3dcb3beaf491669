-- Gives addresses in answers the prefix that the gateway took from the path of the request.
-- `names` come from redirects.py.

local DISCOVERY, KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"

local function prefix_of(name)
  return "/clusters/" .. name .. "/control-plane"
end

function envoy_on_request(request)
  local path, info = request:headers():get(":path"), request:streamInfo()
  local name, rest = path:match("^/clusters/([-a-z0-9]+)/control%-plane([^?]*)")
  if not name then
    return
  end
  -- A route of one control plane has its name. Only routes of the authorizer are of many.
  if info:routeName() ~= name then
    info:dynamicMetadata():set(names.metadata, "name", name)
  end
  local authority = request:headers():get(":authority")
  if rest == DISCOVERY and authority and authority:match("^[%w.:%[%]-]+$") then
    info:dynamicMetadata():set(names.metadata, "keys", "https://" .. authority .. prefix_of(name) .. KEYS)
    -- The answer is read here.
    request:headers():remove("accept-encoding")
  end
end

-- An API server names its keys by its own address, which clients of the gateway do not know. A value of
-- --service-account-jwks-uri with another path stays.
local function lead_to_keys(response, keys)
  local body = response:headers():get(":status") == "200" and response:body()
  if not body then
    return
  end
  local text = body:getBytes(0, body:length())
  local found, first, last = text:match('"jwks_uri":%s*"https://[^/"]+(/[^"]*)"'), text:find('"jwks_uri":%s*"[^"]*"')
  if found == KEYS then
    body:setBytes(text:sub(1, first - 1) .. '"jwks_uri":"' .. keys .. '"' .. text:sub(last + 1))
  end
end

function envoy_on_response(response)
  local info = response:streamInfo()
  local noted = info:dynamicMetadata():get(names.metadata)
  local location = response:headers():get("location")
  -- A path alone: an API server knows no other address, and "//" begins a host.
  if location and location:match("^/") and not location:match("^//") then
    response:headers():replace("location", prefix_of(noted and noted.name or info:routeName()) .. location)
  end
  if noted and noted.keys then
    lead_to_keys(response, noted.keys)
  end
end
