// ---- The address: what the page shows, so that a link can be shared -----------------------------------------------

const PARTS = ['domain', 'policy', 'party', 'from', 'environment'];
const BACK = { '5m': 5 * 60e3, '1h': 3600e3, '6h': 6 * 3600e3 };
let view = viewOf(location.search);

function viewOf(search) {
  const query = new URLSearchParams(search);
  return Object.fromEntries(PARTS.map((part) => [part, query.get(part)]).filter(([, value]) => value));
}
const HEADS = { policy: 'h-policy', party: 'h-party', overview: 'h-policies' };
const kindOf = ({ party, policy }) => (party ? 'party' : policy ? 'policy' : 'overview');

function addressOf(to) {
  const whole = { ...to, environment: picture?.environment ?? to.environment ?? view.environment };
  return `?${new URLSearchParams(PARTS.filter((part) => whole[part]).map((part) => [part, whole[part]]))}`;
}

// A link to another view, which the keys of a browser can also open in a new tab.
function linkTo(to, ...children) {
  const node = el('a', { href: addressOf(to), on: (event) => { if (isPlain(event)) { event.preventDefault(); go(to); } } }, ...children);
  return node;
}
const isPlain = (event) => event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);

function go(to) {
  history.pushState(null, '', addressOf(to));
  enter();
  scrollTo(0, 0);
  $(HEADS[kindOf(view)]).focus({ preventScroll: true });
}

// Shows what the address says.
function enter() {
  view = viewOf(location.search);
  const kind = document.body.dataset.kind = kindOf(view);
  for (const node of document.querySelectorAll('[data-in]')) node.hidden = !node.dataset.in.split(' ').includes(kind);
  $('find').value = '';
  shownPolicies = PAGE;
  put($('find-says'), '');
  fetched = {};
  if (picture) show();
}
addEventListener('popstate', enter);
for (const node of [$('home'), ...document.querySelectorAll('.back')]) node.addEventListener('click', (event) => { if (isPlain(event)) { event.preventDefault(); go({}); } });

// The names in the window's title, the most particular first.
function entitle() {
  const wrong = picture?.faults.length;
  const mark = state !== 'live' ? `(${$('connection').textContent}) ` : wrong ? `(${wrong} at fault) ` : '';
  const what = cut(plain(view.party ?? view.policy ?? view.domain ?? ''));
  document.title = mark + [what, picture?.environment, 'quotagate'].filter(Boolean).map(plain).join(' · ');
}

// The environment has a colour of its own, and a link of another one is named.
const ENVIRONMENTS = [[/^prod|^live/i, 'red'], [/^stag|^pre|^uat|^test/i, 'amber'], [/^dev|^local|^demo/i, 'green']];
function showEnvironment() {
  const name = picture.environment;
  const colour = name && (ENVIRONMENTS.find(([begin]) => begin.test(name))?.[1] ?? 'blue');
  document.body.className = name ? `environment ${colour}` : '';
  $('environment').hidden = !name;
  put($('environment'), name ?? '');
  const other = view.environment && view.environment !== name;
  $('elsewhere').hidden = !other;
  if (other) put($('elsewhere'), `The link that you opened is for ${view.environment}. This store ${name ? `is ${name}` : 'has no such name'}.`);
  else if (name && !view.environment) {
    history.replaceState(null, '', addressOf(view));
    view = viewOf(location.search);
  }
}

// ---- Finding ------------------------------------------------------------------------------------------------------

const wordsIn = () => $('find').value.toLowerCase().split(/\s+/).filter(Boolean);
// Whether these names have every word that was typed, and belong to the domain of the address.
function isFound(domain, ...names) {
  if (view.domain && domain !== view.domain) return false;
  const text = [domain, ...names].join(' ').toLowerCase();
  return wordsIn().every((word) => text.includes(word));
}

$('find').addEventListener('input', () => { shownPolicies = PAGE; put($('find-says'), ''); if (picture) show(); });
$('find').addEventListener('keydown', (event) => { if (event.key === 'Escape') { $('find').value = ''; $('find').dispatchEvent(new Event('input')); } });
$('find-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('find').value.trim();
  if (!text) return;
  const secret = writtenOut(text);
  if (secret) return put($('find-says'), `The value of ${secret} may be a secret, which would be sent and shown. In a shell, \`quotagate why --secret ${secret}\` makes its digest, and \`--plain\` says that it is no secret.`);
  if (text.includes('=')) return go({ domain: view.domain, party: text });
  const found = allPolicies().filter(({ domain, policy }) => isFound(domain, policy.name));
  const exact = found.filter(({ policy }) => policy.name === text);
  const [one] = exact.length === 1 ? exact : found;
  if (found.length === 1 || exact.length === 1) return go({ domain: one.domain, policy: one.policy.name });
  if (picture.domains[text]) return go({ domain: text });
  put($('find-says'), found.length ? `${units(found.length)} policies have this in their names: they are below.` : 'No policy has this in its name. To look a party up, write its label, too: jwt.sub=alice.');
});

addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, select, textarea, dialog')) return;
  event.preventDefault();
  $('find').focus();
  $('find').select();
});

