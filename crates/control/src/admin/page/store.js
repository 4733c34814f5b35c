// ---- The store ---------------------------------------------------------------------------------------------------

// An error for the operator, with the wrong field and the known names.
class Wrong extends Error {
  constructor(field, message, known = []) { super(message); Object.assign(this, { field, known }); }
  get words() { return this.known.length ? `${this.message} (known: ${this.known.join(', ')})` : this.message; }
}

const TOKEN = 'quotagate token';
const asked = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
};

async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  if (response.status === 401) needToken();
  const name = ': open this page under a name or an address that the store knows as its own';
  const remedy = { 401: ': type the token at the top of the page', 403: said.field ? '' : name }[response.status] ?? '';
  const wrong = new Wrong(said.field, `${said.error ?? `the store answered ${response.status}`}${remedy}`, said.known ?? []);
  return Object.assign(wrong, { status: response.status });
}

async function read(path, query) {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`, { headers: asked(), cache: 'no-store', credentials: 'same-origin', redirect: 'error', signal: AbortSignal.timeout(10000) });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function change(method, path, body) {
  let response;
  try {
    response = await fetch(path, { method, headers: { 'content-type': 'application/json', ...asked() }, body: JSON.stringify(body), cache: 'no-store', credentials: 'same-origin', redirect: 'error', signal: AbortSignal.timeout(10000) });
  } catch {
    throw new Wrong(undefined, 'the store did not answer, and may or may not have made the change. Check the lists below before you try again');
  }
  if (!response.ok) throw await refusal(response);
  return response.json();
}

