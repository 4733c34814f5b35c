// ---- Dials, overrides and changes --------------------------------------------------------------------------------

// Whether an entry of this policy belongs to what the page shows.
const isShown = (domain, policy, partition = '') => (view.policy ? policy === '*' || policy === view.policy : true) && isFound(domain, policy, partition);

function showDials() {
  const dials = allDials().filter(({ domain, dial }) => isShown(domain, dial.policy));
  empty('dials', dials);
  sync($('dials'), dials, ({ domain, dial }) => `${domain} ${dial.policy} ${dial.at_ms} ${dial.ends_ms === undefined}`, ({ domain, dial }) => {
    const known = policyOf(domain, dial.policy);
    const row = tr(el('th', { scope: 'row' }, el('b', {}, named(domain, dial.policy)), el('span', { class: 'quiet small' }, el('br'), `by ${dial.by}, ${clock(dial.at_ms)}`)),
      el('td', {}, dialText(dial, known && windowOf(known))), left(dial.ends_ms, 'reverts in '),
      el('td', { class: 'number' }, el('button', { type: 'button', 'aria-label': `Clear the dial of ${plain(named(domain, dial.policy))}`, on: () => clearDial(row.item) }, 'Clear…')));
    return row;
  }, (row, { dial }) => { if (dial.ends_ms !== undefined) row.children[2].ends = dial.ends_ms + skew(); });
}

const SHOWN = 100;
// Overrides and changes of each domain, with what they were fetched for.
const lists = new Map();
let fetching = false;

// Fetches the lists of the domains that have changed since.
async function fetchLists() {
  if (fetching) return;
  const marks = Object.entries(picture.domains).filter(([domain]) => !view.domain || domain === view.domain).map(([domain, of]) => [domain, `${of.version} ${of.overrides}`]);
  const stale = marks.filter(([domain, mark]) => lists.get(domain)?.mark !== mark);
  if (!stale.length) return;
  fetching = true;
  const failed = {};
  for (const [domain, mark] of stale) {
    const old = lists.get(domain) ?? { overrides: [], changes: [] };
    // Nothing was ever changed there.
    if (mark === '0 0') { lists.set(domain, { ...old, mark }); continue; }
    const get = (path, query, name) => read(path, { domain, ...query }).catch((error) => {
      failed[name] = `This list cannot be read: ${error instanceof Wrong ? error.words : 'the store does not answer'}.`;
    });
    const [overrides, changes] = await Promise.all([get('/v1/overrides', { limit: SHOWN + 1 }, 'overrides'), get('/v1/history', { limit: 20 }, 'history')]);
    lists.set(domain, {
      mark: overrides && changes ? mark : undefined,
      overrides: overrides?.map((of) => ({ ...of, ends: of.remaining_ms == null ? undefined : Date.now() + of.remaining_ms })) ?? old.overrides,
      changes: changes?.map((change) => ({ domain, ...change })) ?? old.changes,
    });
  }
  fetching = false;
  for (const name of ['overrides', 'history']) {
    $(`${name}-trouble`).hidden = !failed[name];
    put($(`${name}-trouble`), failed[name] ?? '');
  }
  if (picture) { showOverrides(); showHistory(); }
}

const entriesIn = (partition) => partition.split(',').filter((entry) => entry !== '*').map(decoded);
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
// Whether a partition has an entry of the party that the page shows.
const isOfParty = (partition = '') => !view.party || entriesIn(view.party).every((entry) => entriesIn(partition).includes(entry)) || entriesIn(partition).every((entry) => entriesIn(view.party).includes(entry));

function showOverrides() {
  const overrides = [...lists.values()].flatMap((list) => list.overrides).filter((of) => isShown(of.domain, of.policy, of.partition) && isOfParty(of.partition));
  const total = overrides.length;
  empty('overrides', overrides);
  $('more-overrides').hidden = total <= SHOWN;
  put($('more-overrides'), `These are the first ${SHOWN}: \`quotagate override list\` shows all.`);
  sync($('overrides'), overrides.slice(0, SHOWN), (of) => `${keyOf(of)} ${of.at_ms} ${JSON.stringify(of.allow)}`, (of) => {
    const known = policyOf(of.domain, of.policy);
    const cell = partitionCell(of);
    cell.append(el('span', { class: 'quiet small' }, `; by ${of.by}, ${clock(of.at_ms)}`));
    const row = tr(cell, el('td', { class: of.allow === 'blocked' ? 'bad' : '' }, allows(of.allow, known && windowOf(known))), left(of.ends, 'ends in '),
      el('td', { class: 'number' }, el('button', { type: 'button', 'aria-label': `Clear the override of ${cut(plain(of.partition))} in ${plain(named(of.domain, of.policy))}`, on: () => clearOverride(row.item) }, 'Clear…')));
    return row;
  }, (row, of) => { row.children[2].ends = of.ends; });
}

function showHistory() {
  const changes = [...lists.values()].flatMap((list) => list.changes).filter((of) => (view.party ? of.partition !== undefined && isOfParty(of.partition) : true) && isShown(of.domain, of.policy ?? '*', `${of.partition ?? ''} ${of.done} ${of.by}`));
  changes.sort((a, b) => b.at_ms - a.at_ms);
  empty('history', changes);
  sync($('history'), changes.slice(0, 20), (e) => `${e.at_ms} ${e.by} ${e.done}`, (event) => tr(el('td', {}, clock(event.at_ms, true)), el('td', {}, event.done), el('td', {}, event.by)));
}

