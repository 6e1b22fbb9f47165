// Drives Node's own client of HTTP/2: streams side by side, uploads, downloads,
// trailers and an early answer, over one session.
const http2 = require('http2');
const crypto = require('crypto');

const session = http2.connect(process.argv[2], { rejectUnauthorized: false, servername: 'app.example.org' });
const errors = [];
let ok = 0;
session.on('error', (e) => errors.push('session: ' + e.message));

function request(fields, body, check) {
  return new Promise((resolve) => {
    const req = session.request({ ':authority': 'app.example.org', ...fields }, { waitForTrailers: body !== undefined, endStream: body === undefined });
    const parts = [];
    let status;
    req.on('wantTrailers', () => req.sendTrailers({ 'x-trailer': 'end' }));
    req.on('response', (h) => { status = h[':status']; });
    req.on('data', (d) => parts.push(d));
    req.on('error', (e) => { errors.push(fields[':path'] + ': ' + e.message); resolve(); });
    req.on('end', () => {
      const problem = check(status, Buffer.concat(parts));
      if (problem) errors.push(fields[':path'] + ': ' + problem); else ok++;
      resolve();
    });
    if (body !== undefined) req.end(body);
  });
}

async function main() {
  const all = [];
  for (let i = 0; i < 100; i++) {
    all.push(request({ ':path': '/bytes/' + i * 1000 }, undefined, (status, body) => status !== 200 || body.length !== i * 1000 ? `${status}, ${body.length} bytes` : ''));
    const up = crypto.randomBytes(i * 777);
    const sum = crypto.createHash('sha256').update(up).digest('hex');
    all.push(request({ ':path': '/up', ':method': 'POST' }, up, (status, body) => {
      const seen = JSON.parse(body);
      return status !== 200 || seen.Sum !== sum || seen.Trailer['X-Trailer'][0] !== 'end' ? `${status}, ${body}` : '';
    }));
  }
  await Promise.all(all);
  for (let i = 0; i < 100; i++) {
    await request({ ':path': '/status/404' }, undefined, (status) => status !== 404 ? `${status}` : '');
  }
  session.close();
}

main().catch((e) => errors.push(e.message)).finally(() => {
  console.log(JSON.stringify({ OK: ok, Errors: errors }));
});
