// ---- What the picture says ---------------------------------------------------------------------------------------

const domainOf = (domain) => picture?.domains[domain];
const policyOf = (domain, name) => domainOf(domain)?.policies[name];
const dialOf = (domain, name) => domainOf(domain)?.dials[name];
const several = () => Object.keys(picture?.domains ?? {}).length > 1;
const named = (domain, policy) => {
  const name = policy === '*' ? 'all policies' : policy;
  return several() ? `${name} of ${domain}` : name;
};
const each = (part) => Object.entries(picture?.domains ?? {}).flatMap(([domain, of]) => Object.values(of[part]).map((item) => ({ domain, item })));
const allPolicies = () => each('policies').map(({ domain, item: policy }) => ({ domain, policy }));
const allDials = () => each('dials').map(({ domain, item: dial }) => ({ domain, dial }));

// A policy with its dials applied. Field by field, its own dial wins over the dial of all policies.
function inForce(domain, policy, without) {
  const [own, all] = [policy.name, '*'].map((name) => (name === without ? undefined : dialOf(domain, name)));
  const counts = all && ['mode', 'on_failure'].some((field) => all[field] !== undefined && own?.[field] === undefined);
  const dials = [own, counts ? all : undefined].filter(Boolean);
  const of = (field) => dials.map((dial) => dial[field]).find((value) => value !== undefined) ?? policy[field];
  const share = dials.find((dial) => dial.mode !== undefined)?.enforced_for;
  return { mode: of('mode'), share, quota: of('quota'), on_failure: of('on_failure'), window: perWindow(policy), dials };
}
// When a dial in force ends. Names the dial if there are several.
function endOf(dial, _, dials) {
  const end = dial.ends_ms === undefined ? 'stays until it is cleared' : `reverts in ${span(dial.ends_ms - picture.at_ms)}`;
  const name = dial.policy === '*' ? 'the dial of all policies ' : dials.length > 1 ? 'its own dial ' : '';
  return name + end;
}
const summary = (now) => `${units(now.quota)} ${now.window}, ${now.mode}${shareText(now.share)}, ${now.on_failure} when the store fails`;
// For whom a policy in mode shadow refuses all the same.
const partText = ({ percent, only }) => [percent > 0 && `${percent} %`, ...(only ?? [])].filter(Boolean).join(' and ');
const shareText = (share) => (share ? `, enforced for ${partText(share)}` : '');
const dialText = (dial, window) => [dial.quota !== undefined && `quota ${units(dial.quota)}${window ? ` ${window}` : ''}`, dial.mode && `${dial.mode}${shareText(dial.enforced_for)}`, dial.on_failure && `${dial.on_failure} when the store fails`].filter(Boolean).join(', ');
const beyond = ({ mode, share }) => (share ? 'beyond the quota' : ({ shadow: 'would be refused', mark: 'marked' })[mode] ?? 'refused');
const allows = (allow, window) => (allow === 'unlimited' ? 'as much as it asks for' : allow === 'blocked' ? 'nothing: blocked' : `${units(allow.quota)}${window ? ` ${window}` : ''}`);

// Requests by outcome: admitted, refused, let through in mode shadow, marked, without an identity, not counted, settled by if_missing.
const STEPS = 60;
const STEP_S = 5;
const over = ([, refused = 0, shadow = 0, marked = 0]) => refused + shadow + marked;

// The requests of a policy in the last five minutes.
function lately(domain, name) {
  const steps = domainOf(domain)?.requests?.[name] ?? {};
  const sums = [0, 0, 0, 0, 0, 0, 0];
  for (const number in steps) {
    const counts = steps[number];
    for (let index = 0; index < counts.length; index += 1) sums[index] += counts[index];
  }
  const now = steps[picture.last_step] ?? [];
  return { steps, sums, admitted: (now[0] ?? 0) / STEP_S, beyond: over(now) / STEP_S, refused: (now[1] ?? 0) / STEP_S };
}
// The same as values per second, the oldest first.
function rates(steps) {
  const at = (index) => steps[picture.last_step - STEPS + 1 + index] ?? [];
  const all = Array.from({ length: STEPS }, (_, index) => at(index));
  return { admitted: all.map(([count = 0]) => count / STEP_S), over: all.map((counts) => over(counts) / STEP_S) };
}

// What a policy could not count, in a sentence.
function lostText([, , , , missing, failed]) {
  const lost = [[failed, 'could not be counted because the store failed'], [missing, 'had no identity']].filter(([count]) => count > 0);
  return lost.length ? `Requests in the last 5 minutes: ${lost.map(([count, words]) => `${units(count)} ${words}`).join('; ')}.` : '';
}
// How a policy differs from its configuration, and whether filters still report it.
function changedText(policy, now) {
  const changed = now.dials.length ? [`configured: ${units(policy.quota)} ${now.window}, ${policy.mode}`, ...now.dials.map(endOf)].join('; ') : '';
  const age = picture.at_ms - policy.seen_ms;
  return [changed, age > 90e3 ? `no filter has reported it for ${span(age)}` : ''].filter(Boolean).join('; ');
}
function marksOf(now) {
  const marks = [[now.mode, { enforce: 'good', mark: 'good', shadow: 'warn', off: 'bad' }[now.mode] ?? 'warn']];
  if (now.share) marks.push([shareText(now.share).slice(2), 'warn']);
  if (now.dials.length) marks.push(['dial set', 'warn']);
  return marks;
}
const showMarks = (node, now) => sync(node, marksOf(now), (m) => m.join(), ([text, kind]) => el('span', { class: `mark ${kind}` }, text));

