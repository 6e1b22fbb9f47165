// An HTTPS client as it was written twelve years ago: the https module, a
// keep-alive agent, callbacks, TLS 1.2 at most. It sends bursts of requests with
// pauses between them, as polling robots do, and ends with a line of JSON.
// Arguments: port, bursts, host, and for old TLS the name of a protocol method.
// Node.js runs it from version 0.8 on; before 0.11 the agent keeps no connection.
'use strict';
var https = require('https');
var crypto = require('crypto');

var port = Number(process.argv[2]);
var rounds = Number(process.argv[3]);
var host = process.argv[4];
var method = process.argv[5];
var tls = {keepAlive: true, maxSockets: 8, maxFreeSockets: 8, rejectUnauthorized: false};
if (method) tls.secureProtocol = method; else tls.maxVersion = 'TLSv1.2';
var agent = new https.Agent(tls);
var result = {ok: 0, errors: [], sockets: 0, reused: 0};

function request(i, done) {
  var body = i % 3 === 0 ? crypto.randomBytes(i * 37 % 20000) : null;
  var options = {
    host: '127.0.0.1', port: port, servername: host, agent: agent,
    method: body ? 'POST' : 'GET', path: '/node?i=' + i, headers: {Host: host}
  };
  if (body && i % 2 === 0) options.headers['Content-Length'] = body.length; // else chunked
  var req = https.request(options, function (res) {
    var text = '';
    res.setEncoding('utf8');
    res.on('data', function (d) { text += d; });
    res.on('aborted', function () { result.errors.push(i + ': aborted'); });
    res.on('end', function () {
      try {
        var seen = JSON.parse(text);
        var sum = crypto.createHash('sha256').update(body || '').digest('hex');
        if (res.statusCode !== 200 || seen.Sum !== sum || seen.URI !== '/node?i=' + i) throw new Error(res.statusCode + ' ' + text);
        result.ok++;
      } catch (e) {
        result.errors.push(i + ': ' + e.message);
      }
      done();
    });
  });
  req.on('socket', function (s) {
    if (s.seenBefore) result.reused++; else { s.seenBefore = true; result.sockets++; }
  });
  req.on('error', function (e) { result.errors.push(i + ': ' + e.message); done(); });
  if (body) req.write(body);
  req.end();
}

function burst(n) {
  if (n === rounds) {
    if (agent.destroy) agent.destroy();
    console.log(JSON.stringify(result));
    return;
  }
  var left = 16;
  for (var i = 0; i < 16; i++) {
    request(n * 16 + i, function () { if (--left === 0) setTimeout(burst, 20, n + 1); });
  }
}
burst(0);
