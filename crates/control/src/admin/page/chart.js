// ---- Charts ------------------------------------------------------------------------------------------------------

function svg(tag, traits) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(traits)) node.setAttribute(name, value);
  return node;
}

// Bars, what is beyond the quota on top of what was admitted. Draws nothing twice.
function bars() {
  const node = svg('svg', { class: 'chart', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'No requests yet.' });
  const [below, above] = [svg('path', { class: 'admitted' }), svg('path', { class: 'refused' })];
  node.append(below, above);
  let drawn = '';
  const draw = ({ admitted, over: beyondIt }, most) => {
    const now = JSON.stringify([admitted, beyondIt, most]);
    if (now === drawn) return false;
    drawn = now;
    node.setAttribute('viewBox', `0 0 ${admitted.length} 20`);
    const bar = (x, from, to) => `M${x} ${20 - 20 * from / most}V${20 - 20 * to / most}h.85V${20 - 20 * from / most}z`;
    let [a, r] = ['', ''];
    admitted.forEach((up = 0, x) => {
      if (most > 0 && up > 0) a += bar(x, 0, up);
      if (most > 0 && beyondIt[x] > 0) r += bar(x, up, up + beyondIt[x]);
    });
    below.setAttribute('d', a);
    above.setAttribute('d', r);
    return true;
  };
  return { node, draw };
}
const topOf = ({ admitted, over: beyondIt }) => Math.max(0, ...admitted.map((up = 0, index) => up + (beyondIt[index] ?? 0)));
const greatest = (values) => Math.max(0, ...values.filter((value) => value !== undefined));

// The last five minutes of a policy, and the same in words.
function chart() {
  const { node, draw } = bars();
  const note = el('p', { class: 'quiet small number' });
  return { node, note, draw: (values, words) => {
    const most = topOf(values);
    if (!draw(values, most) && node.dataset.words === words) return;
    node.dataset.words = words;
    const text = most > 0 ? `Last 5 minutes, per second: admitted up to ${rate(Math.max(0, ...values.admitted))}, ${words} up to ${rate(Math.max(0, ...values.over))}.` : 'No requests in the last 5 minutes.';
    node.setAttribute('aria-label', text);
    put(note, most > 0 ? `up to ${rate(most)} /s` : 'no requests in the last 5 minutes');
  } };
}

// A chart with axes. The pointer or the keys of the slider below it read the values of one bar.
const figure = { ...bars(), values: undefined };
$('plot').append(figure.node, el('i', { id: 'cursor', hidden: '' }));

// `end` is when the last bar ends, and `length` the milliseconds of a bar. An undefined value is not known.
function drawFigure(values, words, end, length) {
  Object.assign(figure, { values, words, end, length });
  const top = ceiling(topOf(values));
  figure.draw(values, top);
  const n = values.admitted.length;
  const from = end - n * length;
  figure.node.setAttribute('aria-label', `From ${clock(from)} to ${clock(end)}, per second: admitted up to ${rate(greatest(values.admitted))}, ${words} up to ${rate(greatest(values.over))}.`);
  const ticks = (node, texts) => sync(node, texts, (text, index) => text, (text) => el('li', {}, text));
  ticks($('y-axis'), [`${rate(top)} /s`, rate(top / 2), '0']);
  ticks($('x-axis'), [0, 1, 2, 3, 4].map((part) => clock(from + n * length * part / 4, length < 60e3)));
  const slider = $('moment');
  const wasLast = slider.value === slider.max;
  slider.max = String(n - 1);
  if (wasLast) slider.value = slider.max;
  readFigure();
}

// The least of 1, 2 and 5 with zeros that is not below.
function ceiling(value) {
  if (value <= 0) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= value * 0.999) ?? value;
}

function readFigure() {
  const { values, words, end, length } = figure;
  if (!values) return;
  const n = values.admitted.length;
  const index = Math.min(n - 1, Number($('moment').value));
  const time = clock(end - (n - index) * length, length < 60e3);
  const text = values.admitted[index] === undefined ? `${time}, for ${span(length)}: not known` : `${time}, for ${span(length)}: admitted ${rate(values.admitted[index])} /s, ${words} ${rate(values.over[index])} /s`;
  put($('reading'), text);
  $('moment').setAttribute('aria-valuetext', text);
  $('cursor').hidden = false;
  $('cursor').style.left = `${(index + 0.42) / n * 100}%`;
}
$('moment').addEventListener('input', readFigure);
$('plot').addEventListener('pointermove', (event) => {
  const box = $('plot').getBoundingClientRect();
  $('moment').value = String(Math.floor((event.clientX - box.left) / box.width * (Number($('moment').max) + 1)));
  readFigure();
});
$('plot').addEventListener('pointerleave', () => { $('moment').value = $('moment').max; readFigure(); });

