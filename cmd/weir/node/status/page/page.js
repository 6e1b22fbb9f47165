// The status page of weir. It asks for /status/overview again and again while it is visible, and
// changes only the texts that differ, so that focus and selection stay.

const $ = id => document.getElementById(id);
const ask = new URLSearchParams();
let paused = false, timer = 0, running = null, last = null;

// Texts.

const rate = n => n === 0 ? '0' : n < 0.1 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : count(Math.round(n));
const count = n => n < 100000 ? n.toLocaleString('en') : n < 1e7 ? (n / 1e3).toFixed(0) + 'k' : (n / 1e6).toFixed(0) + 'M';
const time = s => s === 0 ? '–' : s < 0.001 ? (s * 1e6).toFixed(0) + ' µs' : s < 1 ? (s * 1e3).toFixed(s < 0.01 ? 1 : 0) + ' ms' : s.toFixed(1) + ' s';
const bytes = n => n < 1 << 20 ? (n / 1024).toFixed(n < 10240 ? 1 : 0) + ' KiB' : n < 1 << 30 ? (n / 1048576).toFixed(0) + ' MiB' : (n / 1073741824).toFixed(1) + ' GiB';
const clock = at => new Date(at).toLocaleTimeString();
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function span(s) {
  s = Math.max(0, s);
  return s < 90 ? Math.round(s) + ' s' : s < 5400 ? Math.round(s / 60) + ' min' : s < 129600 ? Math.round(s / 3600) + ' h' : Math.round(s / 86400) + ' days';
}

function since(at, now) { return span((now - new Date(at)) / 1000) + ' ago'; }

// The document.

function make(tag, text, cls) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
}

function put(e, text, cls) {
  if (e.textContent !== text) e.textContent = text;
  if (cls !== undefined && e.className !== cls) e.className = cls;
}

// table makes the rows of a table. A row is [key, cells], and a cell a text, or an object with text,
// small, cls, or the function fill for anything else.
function table(body, rows) {
  const heads = [...body.parentElement.querySelectorAll('thead th')], labels = heads.map(th => th.textContent);
  rows[0]?.[1].forEach((cell, n) => heads[n].classList.toggle('number', Boolean(cell.cls?.startsWith('number'))));
  const known = body.rowsByKey ||= new Map(), kept = new Map();
  rows.forEach(([key, cells], i) => {
    if (kept.has(key)) key += ' ' + i;
    let tr = known.get(key);
    if (!tr) {
      tr = make('tr');
      cells.forEach((_, n) => {
        const td = tr.appendChild(make('td'));
        td.dataset.label = labels[n];
      });
    }
    kept.set(key, tr);
    if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null);
    cells.forEach((cell, n) => show(tr.cells[n], cell));
  });
  for (const [key, tr] of known) if (!kept.has(key)) tr.remove();
  body.rowsByKey = kept;
}

function show(td, cell) {
  if (typeof cell !== 'object') cell = {text: cell};
  const same = JSON.stringify(cell);
  if (td.shown === same) return;
  td.shown = same;
  td.className = cell.cls || '';
  const focused = td.contains(document.activeElement);
  const inner = make('div', cell.text);
  if (cell.small) inner.append(make('small', cell.small));
  if (cell.list) inner.append(endpoints(td, cell.list));
  td.replaceChildren(...(inner.childNodes.length ? [inner] : []));
  if (focused) td.querySelector('summary')?.focus({preventScroll: true});
}

// A narrow screen leaves out numbers that are zero.
const number = text => ({text, cls: text === '0' || text === '–' ? 'number zero' : 'number'});
const bad = (text, is) => is ? {text, cls: 'number bad'} : number(text);

// endpoints makes the list of the endpoints of a backend: those with a problem, and the others on request.
function endpoints(td, list) {
  const wasOpen = td.querySelector('details')?.open;
  const item = e => {
    const li = make('li');
    li.append(make('span', e.address, 'mono'), make('span', ' ' + e.state, e.state === 'up' ? 'good' : e.state === 'terminating' ? 'warn' : 'bad'));
    const more = [e.host, e.local ? 'on this node' : '', e.in_flight ? e.in_flight + ' in flight' : '', e.error].filter(Boolean).join(', ');
    if (more) li.append(make('small', more));
    return li;
  };
  const box = make('div'), troubled = list.filter(e => e.state !== 'up'), fine = list.filter(e => e.state === 'up');
  if (troubled.length) {
    const ul = box.appendChild(make('ul'));
    ul.append(...troubled.map(item));
  }
  if (fine.length) {
    const details = box.appendChild(make('details'));
    details.open = Boolean(wasOpen);
    details.append(make('summary', fine.length + ' up'));
    const ul = details.appendChild(make('ul'));
    ul.append(...fine.map(item));
  }
  return box;
}

// list makes one page of a list, with its count and its pager.
function list(section, name, page, rows) {
  table(section.querySelector('tbody'), rows);
  const found = ask.get(name) ? count(page.matching) + ' of ' + count(page.all) : count(page.all);
  put(section.querySelector('.count'), found + (page.bad ? ', ' + count(page.bad) + ' with a problem' : ''), page.bad ? 'count bad' : 'count');
  const pager = section.querySelector('.pager');
  if (!pager.firstChild) {
    const step = (text, by) => {
      const b = pager.appendChild(make('button', text));
      b.type = 'button';
      b.addEventListener('click', () => { ask.set(name + '_page', Number(pager.dataset.page) + by); update(); });
    };
    step('Previous', -1);
    pager.append(make('span'));
    step('Next', 1);
  }
  pager.dataset.page = page.page;
  pager.hidden = page.pages < 2;
  put(pager.children[1], 'page ' + page.page + ' of ' + page.pages);
  pager.children[0].disabled = page.page <= 1;
  pager.children[2].disabled = page.page >= page.pages;
}

// chart draws lines over the last hour.
function chart(n, title, points, lines) {
  const box = $('charts');
  let f = box.children[n];
  if (!f) {
    f = box.appendChild(make('figure'));
    const svg = f.appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'svg'));
    svg.setAttribute('viewBox', '0 0 100 100');
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('role', 'img');
    lines.forEach((_, i) => svg.appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'polyline')).setAttribute('class', i ? 'second dashed' : 'first'));
    f.append(make('figcaption'));
  }
  const top = Math.max(...points.flatMap(p => lines.map(l => p[l.of])), 0);
  lines.forEach((l, i) => f.firstChild.children[i].setAttribute('points', points.map((p, x) =>
    (points.length < 2 ? 100 : x * 100 / (points.length - 1)).toFixed(1) + ',' + (top ? 97 - p[l.of] * 94 / top : 97).toFixed(1)).join(' ')));
  const text = title + (top ? ', highest ' + lines[0].text(top) : '');
  f.firstChild.setAttribute('aria-label', text);
  put(f.lastChild, text);
}

// draw shows an overview.
function draw(o) {
  last = o;
  const now = new Date(o.at);
  const health = o.health.healthy ? ['healthy', 'good'] : ['not healthy', 'bad'];
  document.title = health[0] + ' – ' + o.node + ' – weir';
  put($('node'), o.node);
  put($('badge'), health[0], 'badge ' + health[1]);
  put($('build'), [o.version, 'generation ' + o.generation, 'running for ' + span(o.uptime), 'configuration ' + o.config_hash].filter(Boolean).join(', '));
  put($('updated'), 'updated ' + clock(o.at) + '; times are in the zone ' + zone);
  put($('answer'), o.health.healthy ? 'The health port answers 200.' : 'The health port answers 503:', o.health.healthy ? '' : 'bad');
  $('reasons').replaceChildren(...o.health.reasons.map(r => make('li', r)));
  problems(o);
  const d = o.health.drain;
  $('drain').hidden = !d;
  if (d) put($('drain'), `Draining for ${span(d.seconds)}: ${count(d.new_connections)} new connections since then` +
    (d.new_connections ? `, the last one ${span(d.seconds - d.last_new_connection)} ago` + (d.last_new_connection_from ? ' from ' + d.last_new_connection_from : '') : '') +
    (d.load_balancers_told ? '; each load balancer has seen two answers 503.' : `; these load balancers have not yet seen two answers 503: ${d.load_balancers_not_told.join(', ')}.`));
  $('old-processes').replaceChildren(...o.old_processes.map(p => make('li', `Generation ${p.generation} (process ${p.pid}${p.version ? ', ' + p.version : ''}) still has ${count(p.connections)} connections, ${count(p.active)} of them active` +
    (p.until ? `, for ${span((new Date(p.until) - now) / 1000)} at most.` : '.'))));

  const t = o.traffic;
  table($('rates'), [['now', t.now], [t.hour.seconds >= 3500 ? 'last hour' : 'last ' + span(t.hour.seconds), t.hour]].map(([name, r], i) =>
    [String(i), [name, number(rate(r.requests)), number(rate(r.refused)), bad(rate(r.errors), r.errors > 0), number(time(r.p50)), number(time(r.p90)), number(time(r.p99))]]));
  chart(0, 'requests per second; dashed: errors 5xx', t.past, [{of: 'requests', text: rate}, {of: 'errors', text: rate}]);
  chart(1, 'p50; dashed: p99', t.past, [{of: 'p50', text: time}, {of: 'p99', text: time}]);
  chart(2, 'open connections', t.past, [{of: 'connections', text: count}]);
  const c = o.connections;
  pairs($('connections'), [
    ['requests since the start', count(t.total)], ['open connections', count(c.open)],
    ...Object.entries(c.states).map(([state, n]) => [state, count(n)]), ['parked', count(c.parked)],
    ['memory of the process', c.resident ? bytes(c.resident) : 'unknown'],
    ['held for clients', bytes(c.held) + (c.held_limit ? ' of ' + bytes(c.held_limit) : '')],
    ['memory per connection', c.per_connection ? bytes(c.per_connection) : 'shown from 1,000 connections']]);

  table($('listeners').querySelector('tbody'), o.listeners.map(l => [l.name, [l.name, l.protocol, {text: l.address, cls: 'mono'}, number(count(l.open)),
    ...['active', 'idle', 'tunnel', 'pending'].map(s => number(count(l.states[s] || 0))), number(count(l.parked))]]));

  list($('routes'), 'routes', o.routes, o.routes.rows.map(r => [r.name, [
    {text: r.name || '(no route)', small: r.position}, r.hosts.join(', ') || (r.name && r.position ? 'every host' : ''), r.backend || '',
    ...(r.now.seconds ? [number(rate(r.now.requests)), bad(rate(r.now.errors), r.now.errors > 0), number(time(r.now.p50)), number(time(r.now.p99))] : [number('–'), number('–'), number('–'), number('–')]),
    number(count(r.total)), number(count(r.failed)), number(count(r.tunnels))]]));

  list($('backends'), 'backends', o.backends, o.backends.rows.map(b => {
    const state = b.working === 0 ? ['no endpoint', 'bad'] : b.down > 0 ? [b.down + ' with a problem', 'warn'] : ['up', 'good'];
    return [b.name, [b.name, {text: state[0], cls: state[1]}, number(`${b.working} of ${b.count}`), number(count(b.in_flight)), number(count(b.waiting)), {list: b.endpoints, small: b.count > b.endpoints.length ? `the first ${b.endpoints.length} of ${b.count}` : ''}]];
  }));

  list($('certificates'), 'certificates', o.certificates, o.certificates.rows.map(c => {
    const left = c.not_after ? (new Date(c.not_after) - now) / 1000 : 0;
    const ends = !c.not_after ? {text: 'no certificate yet', cls: 'bad'} : left < 0 ? {text: 'expired', small: c.not_after, cls: 'bad'} : {text: 'in ' + span(left), small: c.not_after.slice(0, 10), cls: c.soon ? 'warn' : ''};
    return [c.names.join() + c.source, [c.names.join(', '), c.source, ends, c.next ? 'in ' + span((new Date(c.next) - now) / 1000) : '', {text: c.error || '', cls: 'bad'}]];
  }));

  const versions = Object.entries(o.tls.versions).sort();
  put($('versions'), versions.length ? 'Handshakes since ' + new Date(o.tls.since).toLocaleString() + ': ' + versions.map(([v, n]) => v + ' ' + count(n)).join(', ') : 'No handshake yet.');
  $('old').hidden = !o.tls.old.length;
  table($('old').querySelector('tbody'), o.tls.old.map((c, i) => [String(i), [c.version, c.host || 'unknown', {text: c.network, cls: 'mono'}, {text: c.ja4, cls: 'mono'}, number(count(c.count)), since(c.last_seen, now)]]));

  table($('refusals').querySelector('tbody'), o.refusals.map(r => [[r.what, r.where, r.reason].join(' '), [since(r.last, now), {text: r.reason, cls: 'mono'}, r.what, r.where || 'no route', number(count(r.count)), {text: r.client || '', cls: 'mono'}, r.detail || '']]));
  events(o.events);

  $('objects').hidden = $('to-objects').hidden = !o.objects;
  if (o.objects) {
    put($('sync'), o.objects.trouble ? 'weir cannot watch the cluster: ' + o.objects.trouble : o.objects.synced ? 'All objects are known.' : 'The objects are not known yet.', o.objects.trouble ? 'bad' : '');
    list($('objects'), 'faults', o.objects.faults, o.objects.faults.rows.map(f => [[f.kind, f.object, f.reason, f.message].join(' '), [f.object, f.kind, f.reason, f.message]]));
  }
}

// problems lists the problems, with links to the sections.
function problems(o) {
  const all = (o.problems || []).map(p => ['#events', p.text + ', for ' + span((new Date(o.at) - new Date(p.since)) / 1000)]);
  if (o.traffic.now.errors > 0) all.push(['#routes', rate(o.traffic.now.errors) + ' errors 5xx per second']);
  if (o.backends.bad) all.push(['#backends', count(o.backends.bad) + ' of ' + count(o.backends.all) + ' backends have a problem']);
  if (o.certificates.bad) all.push(['#certificates', count(o.certificates.bad) + ' of ' + count(o.certificates.all) + ' certificates have a problem']);
  if (o.objects?.faults.all) all.push(['#objects', count(o.objects.faults.all) + ' faults of objects']);
  if (o.objects?.trouble) all.push(['#objects', 'weir cannot watch the cluster']);
  const ul = $('problems');
  $('no-problems').hidden = all.length > 0;
  all.forEach(([to, text], i) => {
    let a = ul.children[i]?.firstChild;
    if (!a) a = ul.appendChild(make('li')).appendChild(make('a'));
    if (a.getAttribute('href') !== to) a.setAttribute('href', to);
    put(a, text, 'bad');
  });
  while (ul.children.length > all.length) ul.lastChild.remove();
}

function pairs(dl, all) {
  all.forEach(([name, text], i) => {
    const div = dl.children[i] || dl.appendChild(make('div'));
    if (!div.firstChild) div.append(make('dt'), make('dd'));
    put(div.firstChild, name);
    put(div.lastChild, text);
  });
  while (dl.children.length > all.length) dl.lastChild.remove();
}

function events(all) {
  const text = JSON.stringify(all), box = $('events'), [latest, older] = box.querySelectorAll('ol');
  if (box.shown === text) return;
  box.shown = text;
  const item = e => {
    const li = make('li');
    const at = li.appendChild(make('time', new Date(e.at).toLocaleString(), 'soft'));
    at.dateTime = e.at;
    li.append(' ', make('span', (e.bad ? 'warning: ' : '') + e.text + (e.times > 1 ? ' (' + e.times + ' times)' : ''), e.bad ? 'warn' : ''));
    return li;
  };
  latest.replaceChildren(...all.slice(0, mostEvents).map(item));
  older.replaceChildren(...all.slice(mostEvents).map(item));
  older.parentElement.hidden = all.length <= mostEvents;
  put(box.querySelector('summary'), count(all.length - mostEvents) + ' earlier events');
}

// mostEvents is how many events the page shows without being asked, so that what follows stays in reach.
const mostEvents = 20;

// Updates.

async function update() {
  clearTimeout(timer);
  running?.abort();
  const mine = running = new AbortController();
  const late = setTimeout(() => mine.abort(), 10000);
  try {
    const res = await fetch('status/overview?' + ask, {signal: mine.signal, cache: 'no-store'});
    if (!res.ok) throw new Error(res.status + ' ' + (await res.text()).slice(0, 200));
    draw(await res.json());
    $('trouble').hidden = true;
  } catch (e) {
    if (mine !== running) return; // a newer request follows
    $('trouble').hidden = false;
    put($('trouble'), 'weir does not answer' + (last ? ' since ' + clock(last.at) + '; the values on this page are old' : '') + ': ' + (e.name === 'AbortError' ? 'no response within 10 s' : e.message));
  } finally {
    clearTimeout(late);
    if (mine === running && !paused && !document.hidden) timer = setTimeout(update, (last?.refresh || 2) * 1000);
  }
}

document.addEventListener('visibilitychange', () => { if (document.hidden) clearTimeout(timer); else if (!paused) update(); });
$('pause').addEventListener('click', () => {
  paused = !paused;
  put($('pause'), paused ? 'Continue' : 'Pause');
  $('pause').setAttribute('aria-pressed', String(paused));
  if (paused) clearTimeout(timer); else update();
});

for (const form of document.querySelectorAll('form.search')) {
  const input = form.querySelector('input');
  let wait = 0;
  form.addEventListener('submit', e => e.preventDefault());
  input.addEventListener('input', () => {
    clearTimeout(wait);
    wait = setTimeout(() => { ask.set(input.name, input.value); ask.delete(input.name + '_page'); update(); }, 200);
  });
}

for (const th of document.querySelectorAll('th[data-sort]')) {
  const text = th.textContent, b = make('button', text);
  b.type = 'button';
  th.replaceChildren(b);
  b.addEventListener('click', () => { ask.set('routes_sort', th.dataset.sort); ask.delete('routes_page'); sorted(); update(); });
}

function sorted() {
  const by = ask.get('routes_sort') || 'requests';
  for (const th of document.querySelectorAll('th[data-sort]')) {
    if (th.dataset.sort === by) th.setAttribute('aria-sort', by === 'name' ? 'ascending' : 'descending'); else th.removeAttribute('aria-sort');
  }
}

// Explain.

$('ask').addEventListener('submit', async e => {
  e.preventDefault();
  const of = new FormData($('ask')), q = new URLSearchParams({url: of.get('url').trim()});
  for (const name of ['method', 'client']) if (of.get(name).trim()) q.set(name, of.get(name).trim());
  for (const h of of.get('header').split('\n')) if (h.trim()) q.append('header', h.trim());
  const out = $('explained');
  try {
    const res = await fetch('explain?' + q, {cache: 'no-store'});
    if (!res.ok) throw new Error((await res.text()).slice(0, 500));
    const x = await res.json();
    const dl = make('dl');
    const refused = x.refused && `${x.refused.status} ${x.refused.reason}: ${x.refused.detail}`;
    pairs(dl, [['listener', `${x.listener} (${x.protocol}, ${x.address})`], ['route', x.route ? x.route + (x.position ? ' (' + x.position + ')' : '') : 'none'],
      ['backend', x.backend || 'none'], ['client', x.client], ['TLS policy', x.tls_policy], ['certificate', x.certificate], ['new path', x.new_path], ['new Host', x.new_host],
      ['Location', x.location], ['guarded by', x.guarded_by], ['refused', refused]].filter(p => p[1]));
    const parts = [dl];
    if (x.filters.length) {
      parts.push(make('h3', 'Filters in their order of effect'));
      const ol = make('ol');
      ol.append(...x.filters.map(f => make('li', f.name + ': ' + f.setting)));
      parts.push(ol);
    }
    if (x.nearest) {
      parts.push(make('h3', 'Nearest routes'));
      const ul = make('ul');
      ul.append(...x.nearest.map(m => make('li', `${m.route}: ${m.condition} is ${m.has || 'missing'}, and has to be ${m.wants}`)));
      parts.push(ul);
    }
    out.replaceChildren(...parts);
  } catch (err) {
    out.replaceChildren(make('p', err.message, 'bad'));
  }
});

sorted();
update();
