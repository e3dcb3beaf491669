-- Gives addresses in answers the prefix that the gateway took from the path of the request.
-- `names` come from redirects.py.

local DISCOVERY, KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"

local function prefix_of(name)
  return "/clusters/" .. name .. "/control-plane"
end

function envoy_on_request(request)
  local path, info = request:headers():get(":path") or "", request:streamInfo()
  local name, rest = path:match("^/clusters/([-a-z0-9]+)/control%-plane([^?]*)")
  if not name then
    return
  end
  local metadata, authority = info:dynamicMetadata(), request:headers():get(":authority")
  -- A route of one control plane has its name. Only routes of the authorizer are of many.
  if info:routeName() ~= name then
    metadata:set(names.metadata, "name", name)
  end
  if authority and rest:find("/proxy", 1, true) then
    metadata:set(names.metadata, "authority", authority)
  end
  if rest == DISCOVERY and authority and authority:match("^[%w.:%[%]-]+$") then
    metadata:set(names.metadata, "keys", "https://" .. authority .. prefix_of(name) .. KEYS)
    -- The answer is read here.
    request:headers():remove("accept-encoding")
  end
end

-- Returns a location below the prefix of the control plane, or nil if the location is of another server.
local function below(prefix, location, authority)
  -- "//" begins a host.
  local origin, path = "", location:match("^/[^/].*$") or location:match("^/$")
  if not path and authority then
    -- An API server keeps the host that a pod names in a redirect, if the request was for that host.
    local host
    origin, host, path = location:match("^(https?://([^/]+))(/.*)$")
    path = host == authority and path
  end
  return path and origin .. prefix .. path
end

-- An API server names its keys by its own IP address, which clients of the gateway do not know. An administrator has
-- chosen any other value (--service-account-jwks-uri, --external-hostname), so it stays.
local function lead_to_keys(response, keys)
  local body = response:headers():get(":status") == "200" and response:body()
  if not body then
    return
  end
  local text = body:getBytes(0, body:length())
  local first, last = text:find('"jwks_uri":%s*"[^"]*"')
  local host, path = text:match('"jwks_uri":%s*"https://([^/"]+)(/[^"]*)"')
  if path == KEYS and (host:match("^[%d.:]+$") or host:match("^%[[%x:.]+%][:%d]*$")) then
    body:setBytes(text:sub(1, first - 1) .. '"jwks_uri":"' .. keys .. '"' .. text:sub(last + 1))
  end
end

function envoy_on_response(response)
  local info = response:streamInfo()
  local noted = info:dynamicMetadata():get(names.metadata) or {}
  local location = response:headers():get("location")
  local moved = location and below(prefix_of(noted.name or info:routeName()), location, noted.authority)
  if moved then
    response:headers():replace("location", moved)
  end
  if noted.keys then
    lead_to_keys(response, noted.keys)
  end
end
