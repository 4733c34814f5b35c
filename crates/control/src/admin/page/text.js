// ---- Text and elements -------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

// Shows invisible characters, and those that change the direction of text, as their code points.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const plain = (text) => String(text).replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
const cut = (text) => (text.length > 56 ? `${text.slice(0, 40)}…${text.slice(-14)}` : text);

function put(node, text) {
  const wanted = plain(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

function el(tag, traits = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(traits)) {
    if (name === 'on') node.addEventListener('click', value);
    else node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : plain(child))));
  return node;
}

// Text that a client chose. A long one is cut; the title and the dialog that opens have all of it.
const theirs = (text) => el('span', { class: 'theirs', dir: 'ltr', title: plain(text) }, cut(plain(text)));

// The roles keep cells readable as a table by screen readers when a narrow screen stacks them.
function tr(...cells) {
  for (const cell of cells) cell.setAttribute('role', cell.tagName === 'TH' ? 'rowheader' : 'cell');
  return el('tr', { role: 'row' }, ...cells);
}

// Updates the children of `parent` to show `items`, and reuses existing elements. While the pointer or the focus is
// inside, rows keep their order, so that a click does not hit the wrong row.
function sync(parent, items, keyOf, create, update = () => {}) {
  const rows = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  const place = new Map([...rows.keys()].map((key, index) => [key, index]));
  const at = (item) => place.get(keyOf(item)) ?? rows.size;
  const ordered = parent.matches(':hover, :focus-within') ? [...items].sort((a, b) => at(a) - at(b)) : items;
  const wanted = new Set(ordered.map(keyOf));
  for (const [key, row] of rows) {
    if (wanted.has(key)) continue;
    if (row.contains(document.activeElement)) row.closest('section').querySelector('h2').focus();
    row.remove();
  }
  let next = parent.firstElementChild;
  for (const item of ordered) {
    let row = rows.get(keyOf(item));
    if (!row) { row = create(item); row.dataset.key = keyOf(item); }
    row.item = item;
    update(row, item);
    if (row === next) next = next.nextElementSibling;
    else parent.insertBefore(row, next);
  }
}

// What the views read for a list. The rest of the lists are of `top`; dials come with the stream.
const READ_FOR = { dials: [], documents: ['documents'], party: [], overrides: ['overrides', 'usage'], history: ['history', 'usage'] };
// Hides a table without rows, and shows the sentence that says why it is empty: there is nothing, or nothing that fits.
function empty(name, items, all = items) {
  const none = $(`no-${name}`);
  none.dataset.nothing ??= none.textContent;
  const kind = view.domain && kindOf(view) === 'overview' ? 'domain' : kindOf(view);
  const open = Object.entries(fetched).find(([key, of]) => !of.value && of.error?.status !== 404 && (READ_FOR[name] ?? ['top']).some((read) => key.startsWith(read)));
  if (open) put(none, open[1].error ? 'This list cannot be read.' : 'Asking the store…');
  else put(none, all.length ? 'Nothing that is listed here fits what you look for.' : kind === 'overview' ? none.dataset.nothing : `There is none of this ${kind}.`);
  none.hidden = items.length > 0;
  ($(name).closest('table') ?? $(name)).hidden = items.length === 0;
}

// ---- Numbers and times -------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat('en');
const units = (n) => whole.format(n);
const rate = (n) => (n > 0 && n < 0.05 ? '<0.1' : n >= 100 ? units(Math.round(n)) : n === 0 ? '0' : n.toFixed(1));
const UNITS = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

// A policy's window: `per 1 min`, `per 1 min sliding`, `per day Europe/Berlin`; `at once` for a concurrency limit.
function perWindow({ kind, window_s: seconds }) {
  if (kind === 'in_flight') return 'at once';
  if (kind?.calendar) return `per ${kind.calendar.unit} ${kind.calendar.time_zone}`;
  const [name, length] = UNITS.find(([, unit]) => seconds % unit === 0);
  return `per ${seconds / length} ${name}${kind === 'sliding' ? ' sliding' : ''}`;
}

function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const from = UNITS.findIndex(([, unit]) => seconds >= unit);
  if (from < 0) return '0 s';
  const [name, unit] = UNITS[from];
  const finer = UNITS[from + 1];
  const rest = finer ? Math.floor((seconds % unit) / finer[1]) : 0;
  return `${Math.floor(seconds / unit)} ${name}${rest ? ` ${rest} ${finer[0]}` : ''}`;
}

function clock(at, seconds = false) {
  const moment = new Date(at);
  const far = Math.abs(at - Date.now()) > 20 * 3600e3;
  const time = { hour: '2-digit', minute: '2-digit', ...(seconds && { second: '2-digit' }), hourCycle: 'h23' };
  return moment.toLocaleString('en-GB', far ? { day: 'numeric', month: 'short', year: 'numeric', ...time } : time);
}

const FOR = /^\s*(\d{1,9})\s*(s|min|m|h|d)\s*$/;
const LONGEST = 366 * 86400e3;

// Milliseconds; undefined if the text is empty. Throws if it is not a time.
function timeIn(text) {
  if (text.trim() === '') return undefined;
  const [, count, unit] = FOR.exec(text) ?? [];
  const ms = count * { s: 1e3, m: 60e3, min: 60e3, h: 3600e3, d: 86400e3 }[unit];
  if (!(ms >= 1000 && ms <= LONGEST)) throw new Wrong('for_ms', 'write a time from 1s to 366d, such as 15m, or leave it empty');
  return ms;
}

function quotaIn(text, field) {
  const number = text.trim();
  // Groups of three with one separator, as this page and the commands show them: 1,5 is not 15.
  const count = Number(/^\d{1,3}(?:([\s,_])\d{3})(?:\1\d{3})*$/.test(number) ? number.replace(/[\s,_]/g, '') : number);
  if (!/^\d[\d\s,_]*$/.test(number) || !Number.isSafeInteger(count)) throw new Wrong(field, 'write a whole number, 0 or more');
  return count;
}

// The label of a header, cookie or query parameter whose value is not a digest.
const writtenOut = (partition) => partition.split(',').map((entry) => /^((?:header|cookie|query)\.[^=]*)=(.*)$/s.exec(entry.trim())).find((entry) => entry && !/^~[0-9a-f]{32}$/.test(entry[2]))?.[1];

// A part of the partitions of a policy, such as `5 %` or `jwt.sub=alice jwt.sub=bob`.
function shareIn(text, isPlain) {
  const [, percent, names] = /^(?:(\d+)\s*%)?(.*)$/s.exec(text.trim());
  const only = names.split(/\s+/).filter(Boolean);
  const part = 'write a share such as 5 %, or partitions such as jwt.sub=alice with spaces between them';
  if (percent !== undefined && !(percent >= 1 && percent <= 100) || only.some((name) => !/^[^=]+=|^~|^\*$/.test(name))) throw new Wrong('enforced_for', part);
  const open = isPlain ? undefined : only.map(writtenOut).find(Boolean);
  if (open) throw new Wrong('enforced_for', `the value of ${open} may be a secret, which would be sent, logged and shown: write its digest, or say below that it is not a secret`);
  return { percent: Number(percent ?? 0), only };
}

