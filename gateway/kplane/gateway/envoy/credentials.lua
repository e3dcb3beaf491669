-- Tells requests whose token is good from requests whose token may be made up.
-- `names` and `limits` come from credentials.py. Each worker of Envoy has variables of its own.

-- Names of tokens in two generations: by control plane, then by name. True: good. False: refused after it was good.
local present, former, began, size = {}, {}, os.time(), 0
local second, questions, by_address = 0, 0, {}

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

local function may_ask(address)
  local now = os.time()
  if now ~= second then
    second, questions, by_address = now, 0, {}
  end
  local own = by_address[address] or 0
  if questions >= limits.questions or own >= limits.address_questions then
    return false
  end
  questions, by_address[address] = questions + 1, own + 1
  return true
end

local function is_verified(request)
  local headers = request:headers()
  local answer = request:httpCall(names.authorizer, {
    [":method"] = "GET",
    [":path"] = headers:get(":path"):match("^/clusters/[-a-z0-9]+/control%-plane"),
    [":authority"] = names.authorizer,
    ["authorization"] = headers:get("authorization") or "",
    [names.protocol] = headers:get(names.protocol) or "",
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
  if good == nil and verifiable and reads and may_ask(address) and is_verified(request) then
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
