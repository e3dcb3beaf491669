-- Tells requests whose token is good from requests whose token may be made up.
-- `names` and `limits` come from credentials.py. Each worker of Envoy has variables of its own.

-- Names of tokens in two generations: by control plane, then by name. True: good. False: refused after it was good.
local present, former, began, size = {}, {}, os.time(), 0

-- Questions of this second: of all tenants, by tenant, and by client network of a tenant.
local second, questions, by_tenant, by_network = 0, 0, {}, {}
-- Number of tenants with questions in this second, and in the second before.
local tenants, former_tenants = 0, 0

-- Answers of an API server that only users get whom it knows. 204 also answers CORS, which needs no credential.
local accepted = {
  ["200"] = true, ["201"] = true, ["202"] = true, ["403"] = true,
  ["404"] = true, ["409"] = true, ["410"] = true, ["422"] = true,
}

local function recall(tenant, name)
  local own = present[tenant]
  if own and own.names[name] ~= nil then
    return own.names[name]
  end
  own = former[tenant]
  return own and own.names[name]
end

local function remember(tenant, name, good)
  if #name > limits.name_bytes then
    return
  end
  local now = os.time()
  if now - began >= limits.generation_seconds or size >= limits.all_bytes then
    former, present, began, size = present, {}, now, 0
  end
  local own = present[tenant]
  if not own or own.size >= limits.tenant_bytes then
    size = size - (own and own.size or 0)
    own = {names = {}, size = 0}
    present[tenant] = own
  end
  if own.names[name] == nil then
    own.size, size = own.size + #name, size + #name
  end
  own.names[name] = good
end

-- Returns the name of the token, whether the authorizer can verify it, and whether answers tell if it is good.
-- The signature names a JSON Web Token: only who has the token knows it.
local function token_of(headers)
  local authorization = headers:get("authorization")
  local token = authorization and authorization:match("^ *[Bb][Ee][Aa][Rr][Ee][Rr] ([^ ]+)")
  if token then
    local signature = token:match("^[%w_-]+[.][%w_-]+[.]([%w_-]+)$")
    if signature and #signature >= 64 then
      return signature, true, true
    end
    return token, false, true
  end
  -- API servers ignore this header unless the request asks for a WebSocket, and answer as to a request without token.
  local protocols = headers:get(names.protocol)
  return protocols and protocols:match("base64url[.]bearer[.]authorization[.]k8s[.]io[.]([^, ]+)"), true, false
end

-- Returns an IPv4 address as it is, and of an IPv6 address the network: a client may have all addresses of that.
local function network_of(address)
  if not address:find(":", 1, true) or address:find(".", 1, true) then
    return address
  end
  local head, tail = address:match("^(.-)::(.*)$")
  local groups = {}
  for group in (head or address):gmatch("[^:]+") do
    groups[#groups + 1] = group
  end
  local _, last = (tail or ""):gsub("[^:]+", "")
  -- "::" stands for all groups that are missing.
  for _ = #groups + 1, 8 - last do
    groups[#groups + 1] = "0"
  end
  for group in (tail or ""):gmatch("[^:]+") do
    groups[#groups + 1] = group
  end
  return table.concat(groups, ":", 1, limits.network_groups)
end

-- Shares the questions of a second evenly: between the tenants that have any and one more, which may come yet. A client
-- network may have half of what its tenant has.
local function may_ask(tenant, address)
  local now = os.time()
  if now ~= second then
    tenants, former_tenants = 0, now == second + 1 and tenants or 0
    second, questions, by_tenant, by_network = now, 0, {}, {}
  end
  if not by_tenant[tenant] then
    by_tenant[tenant], tenants = 0, tenants + 1
  end
  local share = math.max(1, math.floor(limits.questions / (math.max(tenants, former_tenants) + 1)))
  local network = tenant .. " " .. network_of(address)
  local own = by_network[network] or 0
  if questions >= limits.questions or by_tenant[tenant] >= share or own >= math.ceil(share / 2) then
    return false
  end
  questions, by_tenant[tenant], by_network[network] = questions + 1, by_tenant[tenant] + 1, own + 1
  return true
end

local function is_verified(request, address)
  local headers = request:headers()
  local answer = request:httpCall(names.authorizer, {
    [":method"] = "GET",
    [":path"] = headers:get(":path"):match("^/clusters/[-a-z0-9]+/control%-plane"),
    [":authority"] = names.authorizer,
    ["authorization"] = headers:get("authorization") or "",
    [names.protocol] = headers:get(names.protocol) or "",
    [names.client] = address,
    [names.verify] = "token",
  }, "", limits.answer_milliseconds)
  return answer[":status"] == "204"
end

function envoy_on_request(request)
  local name, verifiable, told = token_of(request:headers())
  local context = request:filterContext()
  if not name or not context then
    return
  end
  local tenant = context:get("tenant")
  local address = request:headers():get(names.client) or ""
  local good, method = recall(tenant, name), request:headers():get(":method")
  -- A change that waits here is counted nowhere, so a hold would not wait until it has ended.
  local reads = method == "GET" or method == "HEAD"
  if good == nil and verifiable and reads and may_ask(tenant, address) and is_verified(request, address) then
    good = true
    remember(tenant, name, true)
  end
  local metadata = request:streamInfo():dynamicMetadata()
  metadata:set(names.metadata, "name", name)
  metadata:set(names.metadata, "told", told)
  if good then
    request:headers():replace(names.known, "true")
  else
    metadata:set(names.metadata, names.unknown, true)
  end
end

function envoy_on_response(response)
  local request, context = response:streamInfo():dynamicMetadata():get(names.metadata), response:filterContext()
  if not request or not context then
    return
  end
  local tenant, code = context:get("tenant"), response:headers():get(":status")
  if code == "401" then
    if recall(tenant, request.name) then
      remember(tenant, request.name, false)
    end
  elseif request.told and accepted[code] and response:headers():get("audit-id") then
    -- Answers of the gateway itself have no such header, unless they are 401.
    remember(tenant, request.name, true)
  end
end
