// ---- One policy --------------------------------------------------------------------------------------------------

// What the view fetched besides the stream, by a name of its own. Another view has another object.
let fetched = {};
const FRESH = { since: -Infinity, took: 0 };
function keptFresh(name, every, path, query) {
  const mine = fetched;
  const entry = mine[name] ??= { ...FRESH };
  // A search that takes long is not repeated soon, and nobody looks at a hidden page.
  if (!entry.running && !document.hidden && performance.now() - entry.since >= Math.max(entry.error ? Math.min(every, 5000) : every, 10 * entry.took)) {
    entry.running = true;
    const begun = performance.now();
    read(path, query).then((value) => Object.assign(entry, { value, error: undefined, came: Date.now() }), (error) => {
      entry.error = error;
      // An answer that refuses says that the one before no longer holds.
      if ([401, 403, 404].includes(error.status)) entry.value = undefined;
    }).finally(() => {
      // What fails after a time-out is asked for again soon, and so is what a change has overtaken.
      const took = Math.min(performance.now() - begun, entry.error ? 2000 : Infinity);
      Object.assign(entry, { running: false, ...(entry.again ? FRESH : { since: performance.now(), took }), again: false });
      if (fetched === mine && picture) show();
    });
  }
  return entry;
}
// After a change, everything is read again.
function refetch() {
  for (const entry of Object.values(fetched)) Object.assign(entry, FRESH, { again: entry.running });
  for (const list of lists.values()) list.mark = undefined;
  if (picture) show();
}
// Times of a reply as the picture has them.
const timed = (entry) => (of) => ({ ...of, ends_ms: entry.came + of.reset_ms - skew() });

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const NOTHING = { fullest: {}, refused: {}, would_refuse: {} };
// The policy of the address, with its domain, if only one domain has it.
function shownPolicy() {
  const owners = Object.keys(picture.domains).filter((domain) => policyOf(domain, view.policy) && (!view.domain || view.domain === domain));
  return owners.length === 1 ? { domain: owners[0], policy: policyOf(owners[0], view.policy) } : { owners };
}

function showPolicy() {
  const { domain, policy, owners } = shownPolicy();
  put($('h-policy'), policy ? named(domain, policy.name) : view.policy);
  for (const id of ['policy-body', 'policy-dial', 'policy-override', 'policy-marks']) $(id).hidden = !policy;
  const none = `No filter has reported a policy ${view.policy}${view.domain ? ` of domain ${view.domain}` : ''}.`;
  $('policy-trouble').hidden = Boolean(policy);
  put($('policy-trouble'), policy ? '' : owners.length ? 'Several domains have a policy of this name. Choose one:' : none);
  sync($('policy-domains'), owners ?? [], String, (of) => el('li', {}, linkTo({ ...view, domain: of }, of)));
  if (!policy) return showTop(NOTHING);
  const [now, of] = [inForce(domain, policy), lately(domain, policy.name)];
  showMarks($('policy-marks'), now);
  put($('policy-says'), `${units(now.quota)} ${now.window}; ${now.on_failure} when the store fails`);
  put($('policy-was'), changedText(policy, now));
  put($('policy-lost'), lostText(of.sums));
  put($('policy-admitted'), rate(of.admitted));
  put($('policy-verb'), `${capital(beyond(now))}, per second`);
  put($('policy-refused'), rate(of.beyond));
  $('policy-refused').className = of.beyond > 0 ? 'bad' : '';
  put($('policy-counts'), shared(policy));
  put($('policy-counters'), publishersText());
  put($('policy-documents'), documentsText(domainOf(domain).documents, policy));
  const top = keptFresh('top', 3000, '/v1/top', { domain, policy: policy.name, limit: 20 });
  showFetchedTop(top);
  showFigure(domain, policy, now, of);
}

function showFetchedTop(top) {
  if (!top.value) {
    showTop(NOTHING);
    return;
  }
  const slots = new Map((top.value.slots ?? []).map((of) => [keyOf(of), of]));
  const withSlots = (row) => {
    const of = slots.get(keyOf(row));
    return of ? { ...row, waiting: of.waiting, left_out: of.left_out, longest_begun_ms: of.held > 0 ? top.came - skew() - of.longest_ms : undefined } : row;
  };
  showTop({ ...top.value, fullest: top.value.fullest.map(timed(top)).map(withSlots) });
}

// Which proxies have the policy, by their documents.
function documentsText({ proxies, documents }, policy) {
  if (policy.gone) return 'no proxy reports it any more';
  const digests = [policy, ...(policy.also ?? [])].map((form) => form.digest);
  const having = documents.filter(({ digest }) => digests.includes(digest));
  return having.map((of) => `${of.digest} at ${units(of.proxies)} of ${units(proxies)} proxies`).join(', ') || 'not reported';
}

function showFigure(domain, policy, now, { steps }) {
  const from = Object.hasOwn(BACK, view.from ?? '') ? view.from : '5m';
  $(`from-${from}`).checked = true;
  const words = beyond(now);
  $('known').hidden = from === '5m';
  if (from === '5m') {
    const length = STEP_S * 1000;
    const end = at - (picture.step - picture.last_step - 1) * length;
    return drawFigure(rates(steps), words, Math.floor(end / length) * length, length);
  }
  const entry = keptFresh('requests', 20000, '/v1/requests', { domain, policy: policy.name });
  const minutes = BACK[from] / 60e3;
  const known = entry.value?.admitted.length ?? 0;
  const end = entry.value ? Math.round((entry.value.end_ms + skew()) / 1000) * 1000 : at;
  put($('known'), entry.error ? `The last ${from} cannot be read: ${entry.error.words ?? 'the store does not answer'}.` : entry.value && known < minutes ? `This store has counted since ${clock(end - known * 60e3)}, and forgets it when it stops.` : '');
  const group = from === '6h' ? 5 : 1;
  return drawFigure(grouped(entry.value, minutes, group), words, end, group * 60e3);
}

// Requests by minute as values per second of so many minutes each. Undefined is what the store did not count yet.
function grouped(value, minutes, group) {
  const of = (list) => {
    const all = [...Array(Math.max(0, minutes - list.length)).fill(undefined), ...list.slice(-minutes)];
    return Array.from({ length: minutes / group }, (_, index) => {
      const known = all.slice(index * group, (index + 1) * group).filter((count) => count !== undefined);
      return known.length ? known.reduce((sum, count) => sum + count, 0) / (60 * known.length) : undefined;
    });
  };
  return { admitted: of(value?.admitted ?? []), over: of(value?.refused.map((count, index) => count + value.let_through[index]) ?? []) };
}

for (const choice of document.querySelectorAll('[name=from]')) {
  choice.addEventListener('change', () => {
    history.replaceState(null, '', addressOf({ ...view, from: choice.value }));
    view = viewOf(location.search);
    $('moment').value = $('moment').max;
    show();
  });
}
$('policy-dial').addEventListener('click', () => { const { domain, policy } = shownPolicy(); if (policy) openDial(domain, policy.name); });
$('policy-override').addEventListener('click', () => { const { domain, policy } = shownPolicy(); if (policy) openOverride({ domain, policy: policy.name, partition: '' }); });

