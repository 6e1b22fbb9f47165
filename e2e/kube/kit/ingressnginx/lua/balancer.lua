-- In place of ingress-nginx's balancer: each upstream has fixed endpoints, which are tried in their order.
local ngx_balancer = require("ngx.balancer")
local backends = require("peers").backends

local _M = {}

local function endpoints()
  local list = backends[ngx.var.proxy_upstream_name]
  if list and #list > 0 then
    return list
  end
end

function _M.init_worker() end

function _M.rewrite()
  if not endpoints() then
    ngx.status = ngx.HTTP_SERVICE_UNAVAILABLE
    return ngx.exit(ngx.status)
  end
end

function _M.balance()
  local list = endpoints()
  if not list then
    return
  end
  local tries = ngx.ctx.weir_tries or 0
  ngx.ctx.weir_tries = tries + 1
  ngx_balancer.set_more_tries(1)
  local peer = list[tries % #list + 1]
  local ok, err = ngx_balancer.set_current_peer(peer[1], peer[2])
  if not ok then
    ngx.log(ngx.ERR, "cannot set the peer: ", err)
  end
end

function _M.log() end

return _M
