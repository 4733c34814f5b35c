// ---- Dials, overrides and changes --------------------------------------------------------------------------------

function showDials() {
  const all = allDials();
  const dials = all.filter(({ domain, dial }) => (!view.policy || [view.policy, '*'].includes(dial.policy)) && isFound(domain, dial.policy));
  empty('dials', dials, all);
  sync($('dials'), dials, ({ domain, dial }) => `${domain} ${dial.policy} ${dial.at_ms} ${dial.ends_ms === undefined}`, ({ domain, dial }) => {
    const known = policyOf(domain, dial.policy);
    const row = tr(el('th', { scope: 'row' }, el('b', {}, named(domain, dial.policy)), el('span', { class: 'quiet small' }, el('br'), `by ${dial.by}, ${clock(dial.at_ms)}`)),
      el('td', {}, dialText(dial, known && perWindow(known))), left(dial.ends_ms, 'reverts in '),
      el('td', { class: 'number' }, el('button', { type: 'button', 'aria-label': `Clear the dial of ${plain(named(domain, dial.policy))}`, on: () => clearDial(row.item) }, 'Clear…')));
    return row;
  }, (row, { dial }) => { if (dial.ends_ms !== undefined) row.children[2].ends = dial.ends_ms + skew(); });
}

const SHOWN = 100;
// Overrides and changes of each domain, with what they were fetched for. Another token has another map.
let lists = new Map();
let fetching = false;
const NO_OVERRIDES = { overrides: [], changes: [] };
const ending = (came) => (of) => ({ ...of, ends: of.remaining_ms == null ? undefined : came + of.remaining_ms });

// Fetches the lists of the domains that have changed since.
async function fetchLists() {
  const mine = lists;
  if (fetching) return;
  const marks = Object.entries(picture.domains).filter(([domain]) => !view.domain || domain === view.domain).map(([domain, of]) => [domain, `${of.version} ${of.overrides}`]);
  const stale = marks.filter(([domain, mark]) => mine.get(domain)?.mark !== mark);
  if (!stale.length) return;
  fetching = true;
  const failed = {};
  for (const [domain, mark] of stale) {
    const old = mine.get(domain) ?? NO_OVERRIDES;
    // Nothing was ever changed there.
    if (mark === '0 0') { mine.set(domain, { ...old, mark }); continue; }
    const get = (path, query, name) => read(path, { domain, ...query }).catch((error) => { failed[name] = unread(error); });
    const [overrides, changes] = await Promise.all([get('/v1/overrides', { limit: SHOWN + 1 }, 'overrides'), get('/v1/history', { limit: 20 }, 'history')]);
    mine.set(domain, {
      mark: overrides && changes ? mark : undefined,
      overrides: overrides?.map(ending(Date.now())) ?? old.overrides,
      changes: changes?.map((change) => ({ domain, ...change })) ?? old.changes,
    });
  }
  fetching = false;
  if (mine !== lists) return;
  for (const name of ['overrides', 'history']) {
    $(`${name}-trouble`).hidden = !failed[name];
    put($(`${name}-trouble`), failed[name] ?? '');
  }
  if (picture) { showOverrides(); showHistory(); }
}
const unread = (error) => `This list cannot be read: ${error instanceof Wrong ? error.words : 'the store does not answer'}.`;

// Overrides and changes of what the page shows. Those of a policy or a party are asked for by its name, since they may not be
// among the first of the domain.
function shownLists() {
  const ofDomains = [...lists.entries()].filter(([domain]) => picture.domains[domain] && (!view.domain || domain === view.domain)).map(([, list]) => list);
  const all = { overrides: ofDomains.flatMap((list) => list.overrides), changes: ofDomains.flatMap((list) => list.changes) };
  const asked = (name, path, query, every = 5000) => keptFresh(name, every, path, query);
  const changesOf = (domains, query, every) => domains.flatMap((domain) => (asked(`history ${domain} ${query.policy ?? ''}`, '/v1/history', { domain, limit: 20, ...query }, every).value ?? []).map((change) => ({ domain, ...change })));
  const listedOne = (of) => {
    const name = `overrides ${of.domain} ${of.policy}`;
    const { version } = domainOf(of.domain) ?? {};
    // Each change of an override changes the version.
    if (fetched[name] && fetched[name].version !== version) Object.assign(fetched[name], FRESH, { again: fetched[name].running });
    const entry = asked(name, '/v1/overrides', { domain: of.domain, policy: of.policy }, 600e3);
    entry.version = version;
    return (entry.value ?? []).filter((one) => keyOf(one) === keyOf(of)).map(ending(entry.came));
  };
  if (kindOf(view) === 'policy') {
    const { domain, policy } = shownPolicy();
    if (!policy) return NO_OVERRIDES;
    const own = asked('overrides', '/v1/overrides', { domain, policy: policy.name, limit: SHOWN + 1 });
    const ofAll = asked('overrides *', '/v1/overrides', { domain, policy: '*', limit: SHOWN + 1 });
    return { overrides: [own, ofAll].flatMap((entry) => (entry.value ?? []).map(ending(entry.came))), changes: [policy.name, '*'].flatMap((name) => changesOf([domain], { policy: name })) };
  }
  if (kindOf(view) === 'party') {
    const entry = fetched.usage ?? {};
    const overrides = [...(entry.value?.overrides ?? []), ...(entry.value?.unmatched ?? [])].map(ending(entry.came));
    const query = { partition: view.party.replace(/,\*$/, '') };
    // What nothing counts any more may have a history in each domain.
    const [counting, all_] = [partyDomains(entry.value), entry.value || entry.error ? Object.keys(picture.domains) : []];
    // The reply has those of every partition that contains the party; the one of a partition alone is in the list of its policy.
    const own = (entry.value?.found ?? []).filter((of) => of.quota_from === 'override' && !of.pattern);
    const listed = own.flatMap((of) => all.overrides.find((one) => keyOf(one) === keyOf(of)) ?? listedOne(of));
    return { overrides: [...overrides, ...listed.filter((of, index) => listed.findIndex((one) => keyOf(one) === keyOf(of)) === index)], changes: counting.length ? changesOf(counting, query) : changesOf(all_, query, 60e3) };
  }
  return all;
}

function showOverrides() {
  const all = shownLists().overrides.filter((of) => of.ends === undefined || of.ends > Date.now());
  const overrides = all.filter((of) => isFound(of.domain, of.policy, of.partition));
  empty('overrides', overrides, all);
  $('more-overrides').hidden = all.length <= SHOWN;
  put($('more-overrides'), `Only the first ${SHOWN} are listed: \`quotagate override list\` shows all.`);
  sync($('overrides'), overrides.slice(0, SHOWN), (of) => `${keyOf(of)} ${of.at_ms} ${JSON.stringify(of.allow)}`, (of) => {
    const known = policyOf(of.domain, of.policy);
    const cell = partitionCell(of);
    cell.append(el('span', { class: 'quiet small' }, ` by ${of.by}, ${clock(of.at_ms)}`));
    const useless = of.unmatched ? [el('span', { class: 'warn small where' }, `No request can match it: ${of.unmatched}.`)] : [];
    const row = tr(cell, el('td', { class: of.allow === 'blocked' ? 'bad' : '' }, allows(of.allow, known && perWindow(known)), ...useless), left(of.ends, 'ends in '),
      el('td', { class: 'number' }, el('button', { type: 'button', 'aria-label': `Clear the override of ${cut(plain(of.partition))} in ${plain(named(of.domain, of.policy))}`, on: () => clearOverride(row.item) }, 'Clear…')));
    return row;
  }, (row, of) => { row.children[2].ends = of.ends; });
}

function showHistory() {
  const all = shownLists().changes;
  const changes = all.filter((of) => isFound(of.domain, of.policy ?? '', of.partition ?? '', of.done, of.by));
  changes.sort((a, b) => b.at_ms - a.at_ms);
  empty('history', changes, all);
  sync($('history'), changes.slice(0, 20), (e) => `${e.domain} ${e.at_ms} ${e.by} ${e.done}`, (event) => tr(el('td', {}, clock(event.at_ms, true)), el('td', {}, event.done), el('td', {}, event.by)));
}

