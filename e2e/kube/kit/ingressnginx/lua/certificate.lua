-- In place of ingress-nginx's module: all hosts have the default certificate.
local certificates = require("peers").certificates

local _M = {}

function _M.call() end

function _M.configured_for_current_request()
  local host = ngx.var.host
  return certificates[host] or certificates[(host:gsub("^[^%.]+%.", "*.", 1))] or certificates["_"] or false
end

return _M
