-- In place of ingress-nginx's module, by which the controller changes a running nginx.
return {}
