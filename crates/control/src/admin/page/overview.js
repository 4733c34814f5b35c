// ---- The overview: the store and its policies --------------------------------------------------------------------

function show() {
  $('content').hidden = false;
  showEnvironment();
  const { faults, documents, mixed, warnings, incomplete } = picture;
  const notices = [...faults.map((text) => ['bad', text]), ...documents.map((text) => ['bad', text]), ...mixed.map((text) => ['warn', text]), ...warnings.map((text) => ['warn', text]), ...(incomplete && !faults.length ? [['warn', incomplete]] : [])];
  sync($('faults'), notices, (n) => n.join(), ([kind, text]) => el('p', { class: `notice ${kind}` }, `${kind === 'bad' ? 'At fault' : 'Warning'}: ${text}`));
  const [kind, words] = faults.length ? ['bad', 'Store at fault'] : warnings.length ? ['warn', 'Store ready, with a warning'] : ['good', 'Store ready'];
  $('health').hidden = false;
  $('health').className = `mark ${kind}`;
  put($('health'), words);
  ({ overview: showOverview, policy: showPolicy, party: showParty })[kindOf(view)]();
  showDocuments();
  showDials();
  showOverrides();
  showHistory();
  entitle();
  tick();
  fetchLists();
}

function showOverview() {
  put($('backend'), picture.backend);
  put($('calls'), rate(picture.calls_per_s));
  put($('call-ms'), picture.call_ms === undefined ? 'no calls' : `${picture.call_ms.toFixed(picture.call_ms < 10 ? 2 : 0)} ms`);
  put($('override-count'), units(Object.values(picture.domains).reduce((sum, of) => sum + of.overrides, 0)));
  showPublishers();
  showPolicies();
  // The picture has the first ten of all domains.
  if (view.domain && domainOf(view.domain)) showFetchedTop(keptFresh('top', 3000, '/v1/top', { domain: view.domain, limit: 20 }));
  else showTop(picture);
}

// Whose calls the page shows. The names of the hosts are in the title.
function publishersText() {
  const count = (kind, one, many) => {
    const number = Object.values(picture.publishers).filter((of) => of.kind === kind).length;
    return number === 0 ? [] : [`${units(number)} ${number === 1 ? one : many}`];
  };
  return [...count('store', 'store', 'stores'), ...count('proxy', 'proxy', 'proxies')].join(', ');
}
function showPublishers() {
  put($('publishers'), publishersText());
  const all = Object.values(picture.publishers);
  const lines = all.slice(0, 20).map((of) => `${of.kind} ${plain(of.host)} for ${span(picture.at_ms - of.since_ms)}`);
  $('publishers').title = [...lines, ...(all.length > 20 ? ['…'] : [])].join('\n');
}

const PAGE = 50;
let shownPolicies = PAGE;
const ORDERS = {
  refused: (p) => [p.sums[1], p.sums[2] + p.sums[3], p.sums[4] + p.sums[5]],
  busy: (p) => [p.admitted + p.beyond],
  changed: (p) => [p.now.dials.length, p.sums[1]],
  name: () => [],
};
const nameOf = ({ domain, policy }) => `${domain} ${policy.name}`;

function showPolicies() {
  const list = $('policies');
  const all = allPolicies().map((p) => ({ ...p, now: inForce(p.domain, p.policy), ...lately(p.domain, p.policy.name) }));
  const found = all.filter(({ domain, policy }) => isFound(domain, policy.name));
  const rank = ORDERS[$('sort').value];
  const ranked = found.map((p) => ({ p, ranks: rank(p), name: nameOf(p) })).sort((a, b) => {
    const index = a.ranks.findIndex((value, at_) => value !== b.ranks[at_]);
    return index >= 0 ? b.ranks[index] - a.ranks[index] : a.name < b.name ? -1 : 1;
  }).map(({ p }) => p);
  // Under the pointer or the focus, no policy leaves its position.
  const held = list.matches(':hover, :focus-within') ? new Set([...list.children].map((row) => row.dataset.key)) : new Set();
  const items = [...ranked.filter((p) => held.has(nameOf(p))), ...ranked.filter((p) => !held.has(nameOf(p)))].slice(0, Math.max(shownPolicies, held.size));
  put($('policy-count'), units(all.length));
  put($('refusing-count'), units(all.filter(({ refused }) => refused > 0).length));
  $('no-policies').hidden = all.length > 0;
  $('no-match').hidden = all.length === 0 || found.length > 0;
  list.hidden = found.length === 0;
  put($('policies-shown'), found.length > items.length || found.length < all.length ? `${units(items.length)} of ${units(found.length)} policies${found.length < all.length ? ` that match, of ${units(all.length)}` : ''}` : '');
  $('more-policies').hidden = found.length <= items.length;
  sync(list, items, nameOf, policyRow, updatePolicyRow);
}
$('sort').addEventListener('change', () => { $('policies').replaceChildren(); show(); });
$('more-policies').addEventListener('click', () => { shownPolicies += PAGE; show(); });

function policyRow({ domain, policy }) {
  const row = el('li', { class: 'policy' });
  const open = el('button', { type: 'button', on: () => openDial(row.item.domain, row.item.policy.name) }, 'Dial…');
  row.parts = { name: linkTo({ domain, policy: policy.name }), marks: el('span', { class: 'choice' }), says: el('p', { class: 'number' }), was: el('p', { class: 'quiet small number' }), lost: el('p', { class: 'bad small number' }), admitted: el('b'), refused: el('b'), verb: el('span', { class: 'quiet small' }), open, chart: chart() };
  const { name, marks, says, was, lost, admitted, refused, verb } = row.parts;
  row.append(el('div', { class: 'about' }, el('div', { class: 'title' }, el('h3', {}, name), marks), says, was, lost),
    el('p', { class: 'rate number' }, admitted, el('span', { class: 'quiet small' }, 'admitted /s')),
    el('p', { class: 'rate number' }, refused, verb),
    el('div', { class: 'history' }, row.parts.chart.node, row.parts.chart.note), open);
  return row;
}

function updatePolicyRow(row, { domain, policy, now, sums, steps, admitted, beyond: rateBeyond }) {
  const { parts } = row;
  put(parts.name, named(domain, policy.name));
  showMarks(parts.marks, now);
  put(parts.says, `${units(now.quota)} ${now.window}`);
  put(parts.was, changedText(policy, now));
  put(parts.lost, lostText(sums));
  put(parts.admitted, rate(admitted));
  put(parts.refused, rate(rateBeyond));
  put(parts.verb, `${beyond(now)} /s`);
  parts.refused.className = rateBeyond > 0 ? 'bad' : '';
  row.className = `policy${rateBeyond > 0 && now.mode === 'enforce' ? ' refusing' : now.dials.length ? ' changed' : ''}`;
  parts.open.setAttribute('aria-label', `Dial ${plain(named(domain, policy.name))}`);
  parts.chart.draw(rates(steps), beyond(now));
}

