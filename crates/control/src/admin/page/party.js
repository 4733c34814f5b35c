// ---- One party ---------------------------------------------------------------------------------------------------

// While the slots of some workers cannot be read, none is granted.
const hasUnread = (of) => (of.left_out ?? of.slots?.left_out ?? 0) > 0;
const isOver = (of) => (of.refused ?? 0) > 0 || (of.would_refuse ?? 0) > 0 || (of.quota != null && of.used >= of.quota) || hasUnread(of);
const passes = (of) => !hasUnread(of) && (of.quota == null || of.used < of.quota);
const windowKey = (of) => `${keyOf(of)} ${of.window_s} ${JSON.stringify(of.kind)}`;

function showParty() {
  put($('h-party'), cut(view.party));
  $('h-party').title = plain(view.party);
  const entry = keptFresh('usage', 3000, '/v1/usage', { partition: view.party, ...(view.domain && { domain: view.domain }) });
  const { value, error } = entry;
  const absent = error?.status === 404;
  const found = absent ? [] : (value?.found ?? []).filter((of) => isFound(of.domain, of.policy, of.partition)).map(timed(entry));
  found.sort((a, b) => isOver(b) - isOver(a) || (b.refused ?? 0) - (a.refused ?? 0) || fullness(b) - fullness(a) || (keyOf(a) < keyOf(b) ? -1 : 1));
  $('party-trouble').hidden = !(error && !absent) && !value?.incomplete;
  put($('party-trouble'), error && !absent ? capital(`${error.words ?? 'the store does not answer'}.`) : value?.incomplete ? `There may be more: ${value.incomplete}.` : '');
  put($('party-says'), value && !absent ? partyText(found, value.incomplete) : '');
  // A policy has several counters while proxies have documents with different windows.
  for (const of of found) of.isTwin = found.some((other) => other !== of && keyOf(other) === keyOf(of));
  showEverywhere(partyDomains(value));
  empty('party', found);
  // The sentence above says that not everything was searched.
  if (value?.incomplete && !value.found.length) $('no-party').hidden = true;
  const looked = (value?.found ?? []).length > found.length;
  put($('no-party'), looked ? 'Nothing that counts it fits what you look for.' : absent ? capital(`${error.words.replace(/\.$/, '')}.`) : value || error ? 'No policy counts it now.' : 'Asking the store…');
  sync($('party'), found, windowKey, partyRow, ({ parts }, of) => {
    parts.used.show(of);
    parts.ends.ends = of.ends_ms + skew();
    parts.clear.hidden = of.quota_from !== 'override';
    showMarks(parts.marks, { mode: of.mode, dials: [] });
    put(parts.why, whyText(of));
    parts.why.className = isOver(of) && of.mode === 'enforce' ? 'bad' : '';
  });
}

function partyText(found, incomplete) {
  const names = (list) => list.map((of) => named(of.domain, of.policy)).filter((name, index, all) => all.indexOf(name) === index).join(', ');
  const over_ = found.filter(isOver);
  const [refuse, would] = [over_.filter((of) => of.mode === 'enforce' && !passes(of)), over_.filter((of) => of.mode !== 'enforce' && !passes(of))];
  const lately_ = over_.filter((of) => of.mode === 'enforce' && passes(of));
  return [refuse.length ? `Refused now by ${names(refuse)}.` : `No policy${incomplete ? ' of those that were found' : ''} refuses it now.`, lately_.length ? `Refused in the last five minutes by ${names(lately_)}.` : '', would.length ? `Would be refused, but for the mode, by ${names(would)}.` : ''].filter(Boolean).join(' ');
}

// Why a counter refuses, and where its quota comes from, in sentences.
function whyText(of) {
  const word = of.mode === 'enforce' ? 'refused' : 'let through';
  const count = of.mode === 'enforce' ? of.refused ?? 0 : of.would_refuse ?? 0;
  const since = count > 0 ? `${atMost(count, of.refused_error ?? 0)} ${word} in 5 min${of.refused_for_ms > 0 ? `, for ${span(of.refused_for_ms)}` : ''}.` : '';
  const verb = !isOver(of) ? 'Lets it pass.' : of.mode !== 'enforce' ? (passes(of) ? 'Would have refused it.' : 'Would refuse it.') : passes(of) ? 'Refused it lately.' : 'Refuses it.';
  const source = { override: of.pattern ? `The quota is an override of ${plain(of.pattern.partition)}${of.pattern.policy === '*' ? ' in all policies' : ''}.` : 'The quota is an override.', dial: 'The quota is a dial.', policy: 'The quota is the policy’s.', tier: 'The quota is a tier’s or a claim’s.', document: 'The quota is an override of the document.', reservation: 'The last call named this quota, and the documents of the proxies do not say whose it is.', unknown: 'A tier, a claim or an override of the document decides the quota, and this store has not seen it.' }[of.quota_from];
  return [verb, since, source, holdersText(of), of.gone ? 'No proxy reports this policy any more.' : ''].filter(Boolean).join(' ');
}

// Most proxies that are named with the slots that they hold.
const MAX_HOLDERS = 8;

// Workers whose slots nobody can read, or of which there are too many.
const hiddenText = (workers) => (workers === 1 ? '1 worker cannot be shown' : `${units(workers)} workers cannot be shown`);

// Who holds the slots of a concurrency limit.
function holdersText({ slots }) {
  if (!slots) return '';
  const { waiting = 0, proxies, left_out: hidden = 0 } = slots;
  const more = proxies.length - MAX_HOLDERS;
  const parts = proxies.slice(0, MAX_HOLDERS).map((of) => `proxy ${of.proxy} holds ${units(of.held)}${of.held ? `, the longest for ${span(of.longest_ms)}` : ''}${of.silent_ms ? `, and has been silent for ${span(of.silent_ms)}` : ''}`);
  if (more > 0) parts.push(`${more} more proxies hold or want some`);
  if (hidden) parts.push(`${hiddenText(hidden)}, and no slot is granted while that is so`);
  const waits = waiting ? `${units(waiting)} ${waiting === 1 ? 'slot is' : 'slots are'} waited for` : '';
  return [parts.length ? `${capital(parts.join('; '))}.` : '', waits ? `${waits}.` : ''].filter(Boolean).join(' ');
}

function partyRow(of) {
  const name = `${cut(plain(of.partition))} in ${plain(named(of.domain, of.policy))}${of.isTwin ? ` ${perWindow(of)}` : ''}`;
  const act = (text, label, run) => el('button', { type: 'button', 'aria-label': `${label} ${name}`, on: () => run(row.item) }, text);
  // Slots have no window that ends, and the store refuses to reset them.
  const isSlots = of.kind === 'in_flight';
  const ends = isSlots ? el('td', {}) : el('td', { class: 'number', 'data-label': 'window ends in ', 'data-ends': '' });
  const parts = { used: usedCell(), ends, marks: el('span', { class: 'choice' }), why: el('span'), clear: act('Clear…', 'Clear the override of', (item) => clearOverride(item.pattern ? { ...item, ...item.pattern } : item)) };
  const cell = el('th', { scope: 'row' }, linkTo({ domain: of.domain, policy: of.policy }, named(of.domain, of.policy)), el('span', { class: 'quiet small where' }, theirs(of.partition), ` ${perWindow(of)}`));
  const row = tr(cell, parts.used, el('td', { class: 'why' }, parts.marks, parts.why), parts.ends, el('td', { class: 'number acts' },
    act('Raise…', 'Raise', raise), act('Block…', 'Block', (item) => openOverride(item, { allow: 'blocked', time: '1h' })), isSlots ? '' : act('Reset…', 'Reset', resetCounter), parts.clear));
  row.parts = parts;
  return row;
}

// Twice the quota, and more than is used, for an hour.
function raise(of) {
  const quota = of.quota > 0 ? Math.min(Math.max(of.quota * 2, of.used + 1), Number.MAX_SAFE_INTEGER) : undefined;
  openOverride(of, quota === undefined ? { time: '1h' } : { quota: String(quota), time: '1h' });
}

// The domains that count the party or have overrides of it; the only domain, if none does.
function partyDomains(usage) {
  const counting = new Set([...(usage?.found ?? []), ...(usage?.overrides ?? []), ...(usage?.unmatched ?? [])].map((of) => of.domain));
  const all = Object.keys(picture.domains);
  return view.domain ? [view.domain] : counting.size ? [...counting] : all.length === 1 ? all : [];
}

// Buttons for all policies of each of these domains.
function showEverywhere(domains) {
  const acts = domains.flatMap((domain) => [['Override', {}], ['Block', { allow: 'blocked' }]].map(([act, prefilled]) => ({ domain, act, prefilled })));
  sync($('party-acts'), acts, ({ domain, act }) => `${act} ${domain}`, ({ domain, act, prefilled }) => el('button', {
    type: 'button', 'data-act': act.toLowerCase(), on: () => openOverride({ domain, policy: '*', partition: view.party.endsWith(',*') ? view.party : `${view.party},*` }, { time: '1h', ...prefilled }),
  }, `${act} in ${named(domain, '*')}…`));
}

