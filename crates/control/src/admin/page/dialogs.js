// ---- Dialogs -----------------------------------------------------------------------------------------------------

const NAME = 'quotagate name';
for (const button of document.querySelectorAll('[data-close]')) button.addEventListener('click', () => button.closest('dialog').close());

function complain(form, error) {
  const place = form.querySelector('[role=alert]');
  for (const field of form.querySelectorAll('[aria-invalid]')) field.removeAttribute('aria-invalid');
  place.hidden = !error;
  if (!error) return put(place, '');
  const name = error.field?.split('.')[0];
  const field = [...form.querySelectorAll('[data-field]')].find((at) => at.dataset.field === name);
  const words = `${name && !field ? `${name}: ` : ''}${error.words.replace(/\.$/, '')}`;
  put(place, `${words[0].toUpperCase()}${words.slice(1)}.`);
  const input = field?.matches('fieldset') ? $('override-quota') : field;
  input?.setAttribute('aria-invalid', 'true');
  input?.focus();
}

function policies(select, chosen, all) {
  const choices = Object.entries(picture?.domains ?? {}).flatMap(([domain, of]) => [...Object.keys(of.policies), ...(all ? ['*'] : [])].map((policy) => ({ domain, policy })));
  if (chosen && !choices.some((at) => at.domain === chosen.domain && at.policy === chosen.policy)) choices.unshift(chosen);
  select.replaceChildren(...choices.map((at) => {
    const option = el('option', {}, named(at.domain, at.policy));
    option.at = at;
    option.selected = at.domain === chosen?.domain && at.policy === chosen?.policy;
    return option;
  }));
}
const chosenIn = (select) => {
  const at = select.selectedOptions[0]?.at;
  if (!at) throw new Wrong('policy', 'no filter has reported a policy yet');
  return at;
};

function by(input) {
  const name = input.value.trim();
  if (!name) throw new Wrong('by', 'write your name: the change is logged with it');
  sessionStorage.setItem(NAME, name);
  return name;
}

function openDial(domain = view.domain, policy = view.policy ?? '*') {
  policies($('dial-policy'), domain && { domain, policy }, true);
  for (const id of ['dial-mode', 'dial-share', 'dial-failure', 'dial-quota', 'dial-for']) $(id).value = '';
  for (const id of ['dial-shadow', 'dial-plain']) $(id).checked = false;
  $('dial-by').value = sessionStorage.getItem(NAME) ?? '';
  complain($('dial-form'));
  describeDial();
  $('dial').showModal();
}
function describeDial() {
  const at = $('dial-policy').selectedOptions[0]?.at;
  const policy = at && policyOf(at.domain, at.policy);
  const dial = at && dialOf(at.domain, at.policy);
  const now = policy ? `Now ${summary(inForce(at.domain, policy))}.` : at?.policy === '*' ? 'A dial of a single policy wins over this one.' : '';
  put($('dial-now'), `${now}${dial ? ` ${dial.by} set this dial: fields that you leave as they are keep their values.` : ''}`);
  put($('dial-quota-hint'), policy ? `Units ${perWindow(policy)} for ${shared(policy)}, counted over all proxies. Empty: as it is. 0: refuse everything.` : '');
  for (const id of ['dial-quota-field', 'dial-share-field']) $(id).hidden = at?.policy === '*';
  $('dial-shadow-choice').hidden = at?.policy !== '*' || $('dial-mode').value !== 'enforce';
}
$('dial-policy').addEventListener('change', describeDial);
$('dial-mode').addEventListener('change', describeDial);
$('new-dial').addEventListener('click', () => { const { domain, policy } = view.policy ? shownPolicy() : {}; openDial(domain, policy?.name); });

const until = (ms) => (ms === undefined ? 'until an operator clears it' : `until ${clock(Date.now() + ms)} (${span(ms)})`);
const forgetful = (domain) => (domainOf(domain)?.durable === false ? ['This store keeps it in memory only, and loses it when it stops.'] : []);
const stale = () => (state === 'live' ? [] : ['The page is not live: what it shows may be out of date.']);

$('dial-form').addEventListener('submit', (event) => {
  event.preventDefault();
  try {
    const { domain, policy } = chosenIn($('dial-policy'));
    const body = { domain, policy, mode: $('dial-mode').value || undefined, on_failure: $('dial-failure').value || undefined };
    if (policy !== '*' && $('dial-quota').value.trim()) body.quota = quotaIn($('dial-quota').value, 'quota');
    if (policy !== '*' && $('dial-share').value.trim()) {
      body.enforced_for = shareIn($('dial-share').value, $('dial-plain').checked);
      if ((body.mode ?? 'shadow') !== 'shadow') throw new Wrong('mode', 'leave it as it is: the rest of the partitions is in mode shadow');
      body.mode = 'shadow';
    }
    if (body.mode === undefined && body.on_failure === undefined && body.quota === undefined) throw new Wrong('mode', 'choose a mode, a quota, or what happens when the store fails');
    if (!$('dial-shadow-choice').hidden && $('dial-shadow').checked) body.include_shadow = true;
    body.for_ms = timeIn($('dial-for').value);
    body.by = by($('dial-by'));
    complain($('dial-form'));
    ask({ title: 'Set this dial?', words: dialWords(body), act: 'Set the dial', grave: body.mode === 'off' || body.quota === 0, form: $('dial-form'), run: () => change('PUT', '/v1/dials', body) });
  } catch (error) { wrong($('dial-form'), error); }
});

// Which requests share one counter of a policy, as proxies report it.
function shared(policy) {
  const names = policy?.partition_by?.map((entry) => entry.name);
  if (names?.length === 0) return 'everybody together';
  return names ? `each ${names.join(' and ')}` : 'each partition';
}

function quotaWords({ domain, policy, quota }, window, ends) {
  const known = policyOf(domain, policy);
  const grants = quota ? `grant ${shared(known)} at most ${units(quota)} ${window}, counted over all proxies` : 'grant nothing';
  const tiers = known?.tiers ? ['This replaces the tiers and `quota_from` of the policy: a partition with a larger quota gets this one.'] : [];
  return [`Policy ${policy} of domain ${domain} will ${grants}, ${ends} Runtime overrides stay.`, ...tiers];
}

function dialWords(body) {
  const whom = body.policy === '*' ? 'every policy' : `policy ${body.policy}`;
  const window = perWindow(policyOf(body.domain, body.policy) ?? { window_s: 1 });
  const modes = { enforce: `refuse what is over the quota of ${whom}`, mark: `let all requests of ${whom} through, and mark what is over the quota`, shadow: `count requests of ${whom} and refuse none of them`, off: `neither count nor refuse requests of ${whom}: nothing limits them` };
  const failures = { allow: `admit requests of ${whom} without counting`, deny: `answer requests of ${whom} with 503`, local: `count ${whom} for itself` };
  const ends = `within 10 s, ${until(body.for_ms)}.`;
  const words = [];
  if (body.quota !== undefined) words.push(...quotaWords(body, window, ends));
  if (body.enforced_for) words.push(`Policy ${body.policy} of domain ${body.domain} will refuse what is over the quota for ${partText(body.enforced_for).replace(/^\d+ %/, '$& of its partitions')} only, and count the rest without refusing it, ${ends}`);
  else if (body.mode) words.push(`Every proxy of domain ${body.domain} will ${modes[body.mode]}, ${ends}`);
  if (body.on_failure) words.push(`When the store fails, every proxy of domain ${body.domain} will ${failures[body.on_failure]}, ${ends}`);
  const old = dialOf(body.domain, body.policy);
  const kept = old && dialText({ quota: body.quota === undefined ? old.quota : undefined, mode: body.mode ? undefined : old.mode, enforced_for: old.enforced_for, on_failure: body.on_failure ? undefined : old.on_failure }, window);
  if (kept) words.push(`Values that were set before stay too${body.for_ms === undefined ? '' : ', for the same time'}: ${kept}.`);
  return [...words, ...forgetful(body.domain), ...stale()];
}

function clearDial({ domain, dial }) {
  const policy = policyOf(domain, dial.policy);
  const back = policy ? `to ${summary(inForce(domain, policy, dial.policy))},` : 'to its configuration and to the dials of single policies,';
  ask({ title: 'Clear this dial?', words: [`Every proxy of domain ${domain} returns ${back} for ${dial.policy === '*' ? 'all policies' : `policy ${dial.policy}`}, within 10 s.`, ...stale()], act: 'Clear the dial', run: (name) => change('DELETE', '/v1/dials', { domain, policy: dial.policy, by: name }) });
}

// `prefilled` is what the form offers: a quota or another `allow`, and a time.
function openOverride(of, { allow = 'quota', quota = '', time = '' } = {}) {
  policies($('override-policy'), of && { domain: of.domain, policy: of.policy }, true);
  $('override-partition').value = of?.partition ?? '';
  // The table already shows this value, so it is not a secret.
  $('override-plain').checked = Boolean(of?.partition);
  $('override-quota').value = quota;
  $('override-for').value = time;
  $(`allow-${allow}`).checked = true;
  $('override-by').value = sessionStorage.getItem(NAME) ?? '';
  complain($('override-form'));
  describeOverride();
  $('override').showModal();
  if (of) $(allow === 'quota' ? (of.partition ? 'override-quota' : 'override-partition') : `allow-${allow}`).focus();
}
function describeOverride() {
  const at = $('override-policy').selectedOptions[0]?.at;
  const policy = at && policyOf(at.domain, at.policy);
  put($('override-now'), policy ? `Other partitions may use ${units(inForce(at.domain, policy).quota)} ${perWindow(policy)}.` : '');
  put($('override-window'), policy ? perWindow(policy) : '');
}
$('override-policy').addEventListener('change', describeOverride);
$('new-override').addEventListener('click', () => { const { domain, policy } = view.policy ? shownPolicy() : {}; openOverride(policy && { domain, policy: policy.name, partition: '' }); });
$('override-quota').addEventListener('input', () => { $('allow-quota').checked = true; });

$('override-form').addEventListener('submit', (event) => {
  event.preventDefault();
  try {
    const { domain, policy } = chosenIn($('override-policy'));
    const partition = $('override-partition').value.trim();
    if (!partition) throw new Wrong('partition', 'write the partition, such as jwt.sub=alice');
    const open = writtenOut(partition);
    if (open && !$('override-plain').checked) throw new Wrong('partition', `the value of ${open} may be a secret, which would be sent, logged and shown: in a shell, \`quotagate override set POLICY --secret ${open}\` makes its digest. If it is not a secret, say so below`);
    const kind = document.querySelector('[name=allow]:checked').value;
    const allow = kind === 'quota' ? { quota: quotaIn($('override-quota').value, 'allow') } : kind;
    const body = { domain, policy, partition, allow, for_ms: timeIn($('override-for').value), by: by($('override-by')) };
    complain($('override-form'));
    const known = policyOf(domain, policy);
    const window = known && perWindow(known);
    const may = kind === 'blocked' ? 'be refused everything' : kind === 'unlimited' ? 'be admitted without any limit' : `be admitted at most ${allows(allow, window)}`;
    const words = [['Partition ', theirs(partition), ` will ${may} by ${policy === '*' ? 'all policies' : `policy ${policy}`} of domain ${domain}, within 10 s, ${until(body.for_ms)}.`], ...forgetful(domain), ...stale()];
    ask({ title: 'Set this override?', words, act: 'Set the override', grave: kind === 'blocked' || allow.quota === 0, form: $('override-form'), run: () => change('PUT', '/v1/overrides', body) });
  } catch (error) { wrong($('override-form'), error); }
});

function clearOverride({ domain, policy, partition }) {
  const known = policyOf(domain, policy);
  const back = known ? ` (${units(inForce(domain, known).quota)} ${perWindow(known)}, unless a tier or another rule sets another quota)` : '';
  ask({ title: 'Clear this override?', words: [['Partition ', theirs(partition), ` returns to what ${policy === '*' ? 'each policy' : `policy ${policy}`} of domain ${domain} grants every partition${back}, within 10 s.`], ...stale()], act: 'Clear the override', run: (name) => change('DELETE', '/v1/overrides', { domain, policy, partition, by: name }) });
}

function resetCounter({ domain, policy, partition, used }) {
  ask({ title: 'Reset this counter?', words: [['Partition ', theirs(partition), ` gets the whole quota of policy ${policy} of domain ${domain} again: the ${units(used)} units that it has used in this window no longer count.`], ...stale()], act: 'Reset the counter', run: (name) => change('POST', '/v1/reset', { domain, policy, partition, by: name }) });
}

// Shows in words what will happen, and where. The change is made once the operator confirms.
let pending;
function ask(question) {
  pending = question;
  const where = picture?.environment ? ` in ${picture.environment}` : '';
  put($('confirm-title'), question.title.replace(/\?$/, `${where}?`));
  put($('confirm-do'), `${question.act}${where}`);
  put($('confirm-back'), question.form ? 'Back' : 'Cancel');
  $('confirm-do').className = question.grave ? 'main grave' : 'main';
  $('confirm-words').replaceChildren(...question.words.map((words) => el('p', {}, ...[words].flat())));
  $('confirm-by-field').hidden = Boolean(question.form);
  $('confirm-by').value = sessionStorage.getItem(NAME) ?? '';
  complain($('confirm-form'));
  $('confirm').showModal();
  $(question.form || $('confirm-by').value ? 'confirm-do' : 'confirm-by').focus();
}

$('confirm-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  if ($('confirm-do').disabled) return;
  const { form, run } = pending;
  try {
    const name = form ? undefined : by($('confirm-by'));
    $('confirm-do').disabled = true;
    const changed = await run(name);
    $('confirm').close();
    form?.closest('dialog').close();
    announce(`Done: ${changed.done}${changed.remark ? `. ${changed.remark}` : ''}`);
    refetch();
  } catch (error) {
    if (form) $('confirm').close();
    wrong(form ?? $('confirm-form'), error);
  } finally { $('confirm-do').disabled = false; }
});

function wrong(form, error) {
  complain(form, error instanceof Wrong ? error : new Wrong(undefined, `this page failed: ${error.message}`));
}

function announce(text) {
  const close = el('button', { type: 'button', on: () => { $('outcome').replaceChildren(); $(HEADS[kindOf(view)]).focus(); } }, 'Dismiss');
  $('outcome').replaceChildren(el('div', {}, el('span', {}, text), close));
}

