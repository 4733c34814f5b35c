// ---- Tables of partitions ----------------------------------------------------------------------------------------

const keyOf = (of) => `${of.domain} ${of.policy} ${of.partition}`;

// A partition, which leads to all that counts it, with its policy below.
function partitionCell(of) {
  const name = of.partition === '*' ? theirs('*') : linkTo({ domain: of.domain, party: of.partition.replace(/,\*$/, '') }, theirs(of.partition));
  name.title = plain(of.partition);
  const everybody = of.partition === '*' ? 'everybody, ' : '';
  return el('th', { scope: 'row' }, name, el('span', { class: 'quiet small where' }, everybody, of.policy === '*' ? named(of.domain, '*') : linkTo({ domain: of.domain, policy: of.policy }, named(of.domain, of.policy))));
}
function overrideCell(of) {
  return el('td', { class: 'number' }, el('button', { type: 'button', title: plain(of.partition), 'aria-label': `Override for ${cut(plain(of.partition))} in ${plain(named(of.domain, of.policy))}`, on: (event) => openOverride(event.currentTarget.closest('tr').item) }, 'Override…'));
}

// Used of the quota, with a bar.
function usedCell() {
  const [used, fill] = [el('span'), el('i')];
  const cell = el('td', { class: 'number', 'data-label': 'used ' }, used, el('span', { class: 'bar', 'aria-hidden': 'true' }, fill));
  cell.show = (of) => {
    const from = { override: ' (override)', dial: ' (dial)' }[of.quota_from] ?? '';
    const debt = of.debt > 0 ? `, ${units(of.debt)} in debt` : of.waiting > 0 ? `, ${units(of.waiting)} waiting` : '';
    const unlimited = of.quota_from === 'unknown' ? 'of an unknown quota' : 'unlimited';
    const count = `${units(of.used)}${hasUnread(of) ? '+' : ''}`;
    put(used, of.quota == null ? `${count}, ${unlimited}` : `${count} of ${units(of.quota)}${from}${debt}`);
    const part = fullness(of);
    fill.style.width = `${Math.min(100, part * 100)}%`;
    fill.className = part >= 1 ? 'over' : '';
    used.className = part >= 1 ? 'bad' : '';
  };
  return cell;
}
const fullness = (of) => (hasUnread(of) ? 1 : of.quota == null ? 0 : of.quota === 0 ? 1 : of.used / of.quota);

// The lists of the picture, or of one policy. They come as objects by their keys.
function showTop(top) {
  for (const note of document.querySelectorAll('.listed')) put(note, kindOf(view) === 'policy' ? 'the first 20 of this policy' : view.domain ? 'the first 20 of this domain' : 'the first 10 of all');
  const list = (of, by) => Object.values(of).filter((row) => isFound(row.domain, row.policy, row.partition)).sort((a, b) => by(b) - by(a) || (keyOf(a) < keyOf(b) ? -1 : 1));
  const fullest = list(top.fullest, fullness);
  empty('fullest', fullest, Object.values(top.fullest));
  sync($('fullest'), fullest, keyOf, (of) => {
    const [used, ends] = [usedCell(), el('td', { class: 'number', 'data-label': 'window ends in ' })];
    const row = tr(partitionCell(of), used, ends, overrideCell(of));
    row.parts = { used, ends };
    return row;
  }, ({ parts }, of) => {
    parts.used.show(of);
    if (of.kind === 'in_flight') {
      delete parts.ends.dataset.ends;
      parts.ends.dataset.label = '';
      const longest = of.longest_begun_ms !== undefined && `longest since ${clock(of.longest_begun_ms + skew(), true)}`;
      put(parts.ends, [longest, of.left_out && hiddenText(of.left_out)].filter(Boolean).join('; '));
      return;
    }
    parts.ends.ends = of.ends_ms + skew();
    parts.ends.dataset.ends = '';
    parts.ends.dataset.label = 'window ends in ';
  });
  const refused = list(top.refused, (of) => of.requests);
  empty('refused', refused, Object.values(top.refused));
  showBeyond($('refused'), refused, 'refused in 5 min ');
  const would = list(top.would_refuse, (of) => of.requests);
  $('would-section').hidden = would.length === 0;
  showBeyond($('would'), would, 'let through in 5 min ');
}

// Partitions with requests beyond their quota.
function showBeyond(table, list, label) {
  sync(table, list, keyOf, (of) => {
    const count = el('td', { class: 'number', 'data-label': label });
    const row = tr(partitionCell(of), count, overrideCell(of));
    row.count = count;
    return row;
  }, (row, of) => put(row.count, atMost(of.requests, of.error)));
}
const atMost = (requests, error) => (error > 0 ? `${units(requests - error)} to ${units(requests)}` : units(requests));

// How much the clock of this machine is ahead of the store's, in milliseconds.
const skew = () => at - picture.at_ms;

const left = (ends, label) => {
  const node = el('td', { class: 'number', 'data-label': label }, ends === undefined ? 'not by itself' : '');
  if (ends !== undefined) { node.dataset.ends = ''; node.ends = ends; }
  return node;
};

// Once a second: counts down the times shown, and removes overrides that have ended.
function tick() {
  const now = Date.now();
  for (const node of document.querySelectorAll('[data-ends]')) put(node, span(node.ends - now));
  if (!picture) return;
  put($('as-of'), state === 'live' ? `as of ${clock(at, true)}` : `as of ${clock(at, true)}, ${span(now - at)} ago`);
  if ([...$('overrides').children].some((row) => row.item.ends <= now)) showOverrides();
}
setInterval(tick, 1000);

