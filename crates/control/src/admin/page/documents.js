// ---- Published documents: which proxies have them -----------------------------------------------------------------

const DOCUMENT_DOMAINS = 5;
const DOCUMENT_ROWS = 20;
const isAmiss = (of) => of.last_ms !== undefined || of.state === 'behind';

// Only the overview asks, every 15 s, for each of a few domains whose proxies take published documents up. Those with silent
// proxies or several documents come first.
function showDocuments() {
  const takesUp = ({ documents }) => documents.live || documents.silent;
  const rank = (domain) => { const { silent, documents } = domainOf(domain).documents; return (silent ? 2 : 0) + (documents.length > 1 ? 1 : 0); };
  const all = kindOf(view) === 'overview' ? Object.keys(picture.domains) : [];
  const domains = all.filter((domain) => takesUp(domainOf(domain)) && (!view.domain || domain === view.domain)).sort((a, b) => rank(b) - rank(a));
  const asked = domains.slice(0, DOCUMENT_DOMAINS).map((domain) => ({ domain, ...keptFresh(`documents ${domain}`, 15000, '/v1/documents', { domain }) }));
  $('documents-section').hidden = !asked.length;
  sync($('documents-says'), asked, ({ domain }) => domain, () => el('p', { class: 'number' }), (row, of) => put(row, publishedText(of)));
  const rows = asked.flatMap(({ domain, value }) => [...(value?.proxies ?? []), ...(value?.silent ?? [])].map((of) => ({ ...of, domain })));
  const found = rows.filter((of) => isFound(of.domain, of.proxy, of.digest, `number ${of.number}`)).sort((a, b) => isAmiss(b) - isAmiss(a));
  const shown = found.slice(0, DOCUMENT_ROWS);
  empty('documents', shown, rows);
  sync($('documents'), shown, (of) => `${of.domain} ${of.proxy} ${of.digest} ${of.number}`, (of) => {
    const workers = el('span', { class: 'quiet small where' });
    const row = tr(el('th', { scope: 'row' }, theirs(of.proxy), workers), el('td', {}, `${of.number ? `number ${of.number}, ` : ''}${of.digest}`), el('td', { class: 'number', 'data-label': 'since ' }), el('td'));
    row.workers = workers;
    return row;
  }, (row, of) => {
    const [, , since, state] = row.children;
    put(row.workers, [several() && of.domain, of.workers && workersText(of.workers)].filter(Boolean).join(', '));
    put(since, clock(of.last_ms ?? Math.max(...of.workers.map(({ since_ms }) => since_ms))));
    put(state, stateText(of));
    state.className = isAmiss(of) ? 'bad' : '';
  });
  const unsent = wordsIn().length ? 0 : asked.reduce((sum, { value }) => sum + (value?.left_out ?? 0), 0);
  const more = found.length - shown.length + unsent;
  const notes = [more && `${units(more)} more: see \`quotagate document status${several() ? ' --domain NAME' : ''}\`.`, domains.length > asked.length && `Only ${asked.length} of ${units(domains.length)} domains are shown. To see another one, type its name at the top.`];
  put($('more-documents'), notes.filter(Boolean).join(' '));
}

// What is published in a domain, and how many proxies have it.
function publishedText({ domain, value, error }) {
  const failed = error && `This cannot be read: ${error.words ?? 'the store does not answer'}.`;
  if (!value) return `${domain}: ${failed ?? 'asking the store…'}`;
  const { documents: [last], taken_up: { have, live }, proxies, incomplete } = value;
  // Filters do not hear of a rule file.
  const isTheirs = last?.digest && last.kind !== 'rules';
  const it = !isTheirs ? (live === 1 ? 'its own' : 'their own') : last.percent ? 'what is meant for them' : 'it';
  const isKnown = live > 0 && !proxies.some(({ state }) => state === 'unknown');
  const followed = isKnown ? `; ${units(have)} of ${units(live)} live ${live === 1 ? 'proxy has' : 'proxies have'} ${it}` : '';
  return [`${domain}: ${last ? recordText(last) : 'no document was published'}${followed}.`, incomplete && `${incomplete}.`, failed].filter(Boolean).join(' ');
}

function recordText({ kind, number, digest, rollback_to: again, at_ms: when, by, percent, until_ms: until, note }) {
  const what = digest ? ` (${digest})${again ? `, the content of number ${again}` : ''}, published` : ', withdrawn';
  const who = by === '-' ? '' : ` by ${by}`;
  const limits = `${percent ? ` for ${percent} % of the proxies` : ''}${until ? ` until ${clock(until)}` : ''}`;
  return `${kind === 'rules' ? 'a rule file for rate limit services, ' : ''}number ${number}${what} at ${clock(when, true)}${who}${limits}${note ? `: ${note}` : ''}`;
}

// The indexes of workers, as ranges: `workers 0-3, 7`.
function workersText(workers) {
  const ranges = [];
  for (const { worker } of workers) {
    const last = ranges.at(-1);
    if (last && worker === last[1] + 1) last[1] = worker;
    else ranges.push([worker, worker]);
  }
  const names = ranges.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(', ');
  return `${workers.length === 1 ? 'worker' : 'workers'} ${cut(names)}`;
}

// The reason for a refusal is among the notices at the top.
function stateText(of) {
  if (of.last_ms !== undefined) return 'silent since then';
  if (of.state === 'behind') return of.refuses ? `refuses number ${of.refuses}` : 'behind';
  return { published: 'published', own: of.live ? 'its own' : 'its own, not live' }[of.state] ?? 'not known';
}

