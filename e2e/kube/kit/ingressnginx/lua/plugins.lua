-- In place of ingress-nginx's module for plugins.
return { init = function() end, run = function() end }
