-- In place of ingress-nginx's module, which needs memcached, and which later versions do not have.
return { throttle = function() end }
