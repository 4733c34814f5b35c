// ---- The stream of events ----------------------------------------------------------------------------------------

const STALL = 5000;
const MAX_EVENT = 16 * 1024 * 1024;
let state = 'connecting';
// What the store shows, and when it came.
let picture;
let at;
let failures = 0;
let stream;
let again;

// The whole picture. Objects that have names from outside as keys, the outer ones, get no prototype, so that `constructor` and
// `__proto__` are only names.
function bare(whole, depth = 3) {
  Object.setPrototypeOf(whole, null);
  if (depth > 0) Object.values(whole).filter(isObject).forEach((inner) => bare(inner, depth - 1));
  return whole;
}
// A JSON merge patch.
function merge(into, patch) {
  const merged = isObject(into) ? into : Object.create(null);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = isObject(value) ? merge(merged[name], value) : value;
  }
  return merged;
}
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

// `EventSource` cannot send a token, so the stream is read by hand.
async function follow() {
  clearTimeout(again);
  stream?.abort();
  const mine = stream = new AbortController();
  let stall;
  const alive = () => { clearTimeout(stall); stall = setTimeout(() => mine.abort(new Error(`the store sent nothing for ${STALL / 1000} s`)), STALL); };
  let why = 'the store ended the connection';
  try {
    alive();
    const response = await fetch('/v1/events', { headers: { accept: 'text/event-stream', ...asked() }, cache: 'no-store', credentials: 'same-origin', redirect: 'error', signal: mine.signal });
    if (!response.ok) throw await refusal(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      alive();
      pending += value;
      if (pending.length > MAX_EVENT) throw new Error('the store sent too much at once');
      const events = pending.split(/\r?\n\r?\n/);
      pending = events.pop();
      const data = events.filter(Boolean).map(take).filter(Boolean);
      if (data.length) {
        [failures, at] = [0, Date.now()];
        if (state !== 'live') turn('live');
        try { show(); } catch (error) { throw new Error(`this page failed: ${error.message}`); }
      }
    }
  } catch (error) {
    why = error instanceof TypeError ? 'the store does not answer' : error.message;
  }
  clearTimeout(stall);
  if (stream !== mine || state === 'token') return;
  failures += 1;
  turn('lost', why);
  const wait = Math.min(10000, 500 * 2 ** Math.min(failures - 1, 6)) * (0.75 + Math.random() / 2);
  again = setTimeout(follow, wait);
}

// Takes the data of an event into the picture: `changes` are a patch, everything else is the whole. Returns whether there was any.
function take(event) {
  const lines = event.split(/\r?\n/);
  const of = (field) => lines.filter((line) => line.startsWith(`${field}:`)).map((line) => line.slice(field.length + 1).trimStart()).join('\n');
  const data = of('data');
  if (data) picture = of('event') === 'changes' ? merge(picture, JSON.parse(data)) : bare(JSON.parse(data));
  return data !== '';
}

function turn(to, why = '') {
  state = to;
  const [words, kind] = { live: ['Live', 'good'], token: ['Needs the token', 'bad'] }[to] ?? [picture ? 'Reconnecting' : 'Connecting', 'warn'];
  put($('connection'), words);
  $('connection').className = `mark ${kind}`;
  $('token-form').hidden = to !== 'token';
  $('forget').hidden = !sessionStorage.getItem(TOKEN) || to === 'token';
  $('trouble').hidden = to !== 'lost';
  if (to === 'lost') put($('trouble'), picture ? `Not live: ${why}. The page shows the state of ${clock(at, true)}. Trying again.` : `Nothing to show yet: ${why}. Trying again.`);
  if (to === 'token') { forgetAll(); put($('as-of'), ''); sync($('faults'), [], String); }
  entitle();
}

// What one token could see is not for the next one.
function forgetAll() {
  picture = undefined;
  lists = new Map();
  fetched = {};
  $('content').hidden = true;
  $('health').hidden = true;
}

function needToken() {
  const refused = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  stream?.abort();
  turn('token');
  $('trouble').hidden = !refused;
  if (refused) put($('trouble'), 'The store refused this token. Nothing was changed.');
}

$('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const token = $('token').value.trim();
  if (!token) return $('token').focus();
  sessionStorage.setItem(TOKEN, token);
  $('token').value = '';
  turn('connecting');
  follow();
});
$('forget').addEventListener('click', () => { sessionStorage.removeItem(TOKEN); forgetAll(); stream?.abort(); follow(); });
addEventListener('online', follow);
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  if (state === 'lost') follow();
  else if (picture) show();
});

