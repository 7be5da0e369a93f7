// Charts in SVG. Colours are classes, so that the style sheet can change them with the scheme; text is never markup.

const NS = "http://www.w3.org/2000/svg";
const EDGE = { top: 8, right: 6, bottom: 20, left: 36 };
const HEIGHT = 190;
const COLOURS = 16;
const named = new Map(); // name → colour: a task and its expert have one name, and so one colour

const colour = (i) => `h${i % COLOURS}`;
export const colourOf = (name) => named.get(name) ?? named.set(name, named.size).get(name);
export const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const percent = (value) => `${Math.round(100 * value)}%`;
export function size(bytes) {
  const [unit, name] = bytes < 1e6 ? [1e3, "kB"] : bytes < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${new Intl.NumberFormat("en", { maximumSignificantDigits: 3 }).format(bytes / unit)}\u00a0${name}`;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function swatch(i) {
  return svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, rx: 2, class: colour(i) }));
}

const entry = (i, name, value) => html("li", {}, swatch(i), `${name} `, html("b", {}, value));

// Names in their colours, with a value each: [[name, value?]].
export const tags = (entries) => html("ul", { class: "legend" }, ...entries.map(([name, value = ""]) => entry(colourOf(name), name, value)));

// One thin bar of a blend's shares: [[name, share]].
export function bar(shares, label) {
  const drawn = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let left = 0;
  shares.forEach(([name, share]) => {
    if (share > 0) drawn.append(svg("rect", { x: 100 * left, width: 100 * share, height: 10, class: colour(colourOf(name)) }));
    left += share;
  });
  drawn.append(svg("title", {}, label));
  return drawn;
}

// One thin bar from zero in the middle to a value, and its interval; the scale ends at `most` on both sides.
export function around(value, error, most, label) {
  const at = (point) => 50 + (50 * point) / (most || 1);
  const box = (from, to, attributes) => svg("rect", { x: Math.min(at(from), at(to)), width: Math.abs(at(to) - at(from)), ...attributes });
  const drawn = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
  drawn.append(box(0, value, { height: 10, class: value < 0 ? "loss" : "win" }), box(value - error, value + error, { y: 4, height: 2, class: "interval" }),
    svg("rect", { x: 49.75, width: 0.5, height: 10, class: "interval" }));
  return drawn;
}

// Shares that sum to 1 at each x, one on top of another; in steps when nothing lies between two x. series: [{name, values}].
export function areas(figure, { x, series, label, steps = false }) {
  if (x.length === 1) [x, series] = [[x[0], x[0]], series.map(({ name, values: [only] }) => ({ name, values: [only, only] }))]; // as wide as many
  const frame = begin(figure, { x, label, high: 1, format: percent });
  if (!frame) return;
  const outline = (values) => values.flatMap((value, at) => {
    const [here, halfway] = [frame.px(at), (frame.px(Math.max(0, at - 1)) + frame.px(at)) / 2];
    const [y, before] = [frame.py(value), frame.py(values[Math.max(0, at - 1)])];
    return steps ? [`${halfway},${before}`, `${halfway},${y}`, `${here},${y}`] : [`${here},${y}`];
  });
  let floor = x.map(() => 0);
  series.forEach(({ name, values }) => {
    const roof = floor.map((under, at) => under + (values[at] ?? 0));
    const path = [...outline(roof), ...outline(floor).reverse()].join("L");
    frame.drawn.append(svg("path", { d: `M${path}Z`, class: `area ${colour(colourOf(name))}` }));
    floor = roof;
  });
  const last = (values) => percent(values.at(-1) ?? 0);
  finish(frame, series.map(({ name, values }) => [colourOf(name), name, last(values), (at) => percent(values[at] ?? 0)]));
}

// Lines over x; null leaves a gap; the axis goes up to `high`, or to what is needed and `least`. series: [{name, values, dots?, hue?}].
export function lines(figure, { x, series, label, format = number, high, least = 1e-9 }) {
  const known = series.flatMap(({ values }) => values.filter((value) => value !== null && value !== undefined));
  const top = high ?? nice(Math.max(...known, least));
  const frame = begin(figure, { x: known.length ? x : [], label, high: top, format });
  if (!frame) return;
  series.forEach(({ values, dots, hue }, n) => {
    const i = hue ?? n;
    const present = values.map((value, at) => [at, value]).filter(([, value]) => value !== null && value !== undefined);
    if (dots || present.length === 1) {
      for (const [at, value] of present) frame.drawn.append(svg("circle", { cx: frame.px(at), cy: frame.py(value), r: 2, class: `dot ${colour(i)}` }));
    }
    if (dots) return;
    let path = "";
    let before = -2;
    for (const [at, value] of present) {
      path += `${at === before + 1 ? "L" : "M"}${frame.px(at)},${frame.py(value)}`;
      before = at;
    }
    frame.drawn.append(svg("path", { d: path || "M0,0", class: `line ${colour(i)}` }));
  });
  const last = (values) => values.findLast((value) => value !== null && value !== undefined);
  finish(frame, series.map(({ name, values, hue }, n) => [hue ?? n, name, format(last(values)), (at) => format(values[at])]));
}

function begin(figure, { x, label, high, format }) {
  if (!x.length) {
    figure.replaceChildren(html("div", { class: "nothing" }, "nothing yet"));
    figure.onpointermove = figure.onpointerleave = null;
    return null;
  }
  const width = figure.clientWidth;
  const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
  const px = (at) => +(EDGE.left + (x.length > 1 ? (at / (x.length - 1)) * inner.width : inner.width / 2)).toFixed(1);
  const py = (value) => +(EDGE.top + (1 - Math.min(1, Math.max(0, value / high))) * inner.height).toFixed(1);
  const drawn = svg("svg", { height: HEIGHT, role: "img", "aria-label": label });
  for (const tick of [0, 0.25, 0.5, 0.75, 1].map((part) => part * high)) {
    drawn.append(svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: py(tick), y2: py(tick), class: "grid" }));
    drawn.append(svg("text", { x: EDGE.left - 5, y: py(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  drawn.append(svg("text", { x: EDGE.left, y: HEIGHT - 4 }, x[0]));
  if (x.length > 1) drawn.append(svg("text", { x: width - EDGE.right, y: HEIGHT - 4, "text-anchor": "end" }, x.at(-1)));
  return { figure, x, px, py, drawn, width };
}

function finish({ figure, x, px, drawn, width }, entries) {
  const legend = html("ul", { class: "legend" });
  for (const [i, name, value] of entries) legend.append(entry(i, name, value));
  const cursor = svg("line", { y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "cursor", visibility: "hidden" });
  drawn.append(cursor);
  const tip = html("div", { class: "tip", hidden: "" });
  figure.replaceChildren(drawn, legend, tip);
  figure.onpointermove = (event) => {
    const left = event.clientX - figure.getBoundingClientRect().left;
    const at = Math.max(0, Math.min(x.length - 1, Math.round(((left - EDGE.left) / (width - EDGE.left - EDGE.right)) * (x.length - 1))));
    cursor.setAttribute("x1", px(at));
    cursor.setAttribute("x2", px(at));
    cursor.setAttribute("visibility", "visible");
    const rows = entries.map(([i, name, , value]) => entry(i, name, value(at)));
    tip.replaceChildren(html("div", {}, x[at]), html("ul", { class: "legend" }, ...rows));
    tip.hidden = false;
    const room = width - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, px(at) > width / 2 ? px(at) - tip.offsetWidth - 10 : px(at) + 10))}px`;
  };
  figure.onpointerleave = () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  };
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 8, 10].find((step) => step * power >= value * 0.999) * power; // quarters that few digits hold
}
