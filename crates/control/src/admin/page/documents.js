// ---- Published documents: which proxies have them -----------------------------------------------------------------

const DOCUMENT_DOMAINS = 5;
const DOCUMENT_ROWS = 20;
const isAmiss = (of) => of.last_ms !== undefined || of.state === 'behind';

// Only the overview asks, every 5 s, for each of a few domains whose proxies take published documents up.
function showDocuments() {
  const takesUp = ({ documents }) => documents.live || documents.silent;
  const domains = kindOf(view) === 'overview' ? Object.keys(picture.domains).filter((domain) => takesUp(domainOf(domain)) && (!view.domain || domain === view.domain)) : [];
  const asked = domains.slice(0, DOCUMENT_DOMAINS).map((domain) => ({ domain, ...keptFresh(`documents ${domain}`, 5000, '/v1/documents', { domain }) }));
  $('documents-section').hidden = !asked.length;
  sync($('documents-says'), asked, ({ domain }) => domain, () => el('p', { class: 'number' }), (row, of) => put(row, publishedText(of)));
  const rows = asked.flatMap(({ domain, value }) => [...(value?.proxies ?? []), ...(value?.silent ?? [])].map((of) => ({ ...of, domain })));
  const found = rows.filter((of) => isFound(of.domain, of.proxy, of.digest)).sort((a, b) => isAmiss(b) - isAmiss(a));
  const shown = found.slice(0, DOCUMENT_ROWS);
  $('documents').closest('table').hidden = !shown.length;
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
  const more = found.length - shown.length + asked.reduce((sum, { value }) => sum + (value?.left_out ?? 0), 0);
  const notes = [more && `${units(more)} more: see \`quotagate document status\`.`, domains.length > asked.length && `Only the first ${asked.length} of ${units(domains.length)} domains are shown. To see another one, type its name at the top.`];
  put($('more-documents'), notes.filter(Boolean).join(' '));
}

// What is published in a domain, and how many proxies have it.
function publishedText({ domain, value, error }) {
  const failed = error && `This cannot be read: ${error.words ?? 'the store does not answer'}.`;
  if (!value) return `${domain}: ${failed ?? 'asking the store…'}`;
  const { documents: [last], taken_up: { have, live }, proxies, incomplete } = value;
  const limits = last ? [last.percent && ` for ${last.percent} % of the proxies`, last.until_ms && ` until ${clock(last.until_ms)}`] : [];
  const what = last ? `number ${last.number}${last.digest ? ` (${last.digest}), published` : ', withdrawn'} at ${clock(last.at_ms, true)}${last.by === '-' ? '' : ` by ${last.by}`}${limits.filter(Boolean).join('')}` : 'no document was published';
  const it = last?.percent ? 'what is meant for them' : last?.digest ? 'it' : live === 1 ? 'its own' : 'their own';
  const isKnown = live > 0 && !proxies.some(({ state }) => state === 'unknown');
  const followed = isKnown ? `; ${units(have)} of ${units(live)} live ${live === 1 ? 'proxy has' : 'proxies have'} ${it}` : '';
  return [`${domain}: ${what}${followed}.`, incomplete && `${incomplete}.`, failed].filter(Boolean).join(' ');
}

function workersText(workers) {
  const names = workers.map(({ worker }) => worker).join(', ');
  return workers.length === 1 ? `worker ${names}` : `workers ${cut(names)}`;
}

// The reason for a refusal is among the notices at the top.
function stateText(of) {
  if (of.last_ms !== undefined) return 'silent since then';
  if (of.state === 'behind') return of.refuses ? `refuses number ${of.refuses}` : 'behind';
  return { published: 'published', own: of.live ? 'its own' : 'its own, not live' }[of.state] ?? 'not known';
}

