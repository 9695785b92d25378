(async function () {
"use strict";

const $ = (id) => document.getElementById(id);
const bytes = Uint8Array.from(atob($("data").textContent), (letter) => letter.charCodeAt(0));
const data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const words = data.words;
const ROW = 28;  // px, as in page.css
const MOST_PRINTED = 40;

// Readable numbers, formatted as units.py does.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const DIGITS = [1, 2].map((n) => new Intl.NumberFormat("en", { minimumFractionDigits: n, maximumFractionDigits: n }));
const grouped = (v) => WHOLE.format(v);

function scaled(value, units, whole) {
  let unit = units[0];
  for (const each of units) if (Math.abs(value) >= each[1]) unit = each;
  if (unit[0] === whole) return grouped(value) + (whole ? " " + whole : "");
  const number = value / unit[1];
  return DIGITS[Math.abs(number) < 100 ? 1 : 0].format(number) + " " + unit[0];
}
const SI = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["P", 1e15], ["E", 1e18]];
const IEC = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40], ["PiB", 2 ** 50]];
const TIME = [["ns", 1e-9], ["us", 1e-6], ["ms", 1e-3], ["s", 1]];
const count = (v) => scaled(v, SI, "");
const size = (v) => scaled(v, IEC, "B");
const time = (v) => (v ? scaled(v, TIME, null) : "0");
const percent = (v) => (100 * v).toFixed(1) + "%";
const exactly = (v) => (Math.abs(v) <= Number.MAX_SAFE_INTEGER ? grouped(v) : "about " + v.toPrecision(15));
const KINDS = {
  count: { show: (v) => (v ? count(v) : "0"), exact: exactly },
  B: { show: size, exact: (v) => exactly(v) + " bytes" },
  s: { show: time, exact: (v) => Number(v.toPrecision(6)) + " s" },
  number: { show: grouped, exact: exactly },
  share: { show: percent, exact: (v) => 100 * v + "%" },
  ratio: { show: (v) => v.toPrecision(3), exact: String },
};
const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);
const unique = (values) => [...new Set(values)];

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") Object.assign(made.style, value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

let choices = 0;
function choice(holder, title, options, current, chosen) {
  if (options.length < 2) return null;
  const name = "choice" + choices++;
  const labels = options.map(([value, label]) => {
    const input = element("input", { type: "radio", name, value });
    input.checked = value === current;
    input.addEventListener("change", () => chosen(value));
    return element("label", {}, input, element("span", {}, label));
  });
  const fieldset = element("fieldset", {}, element("legend", {}, title), element("div", { class: "choice" }, ...labels));
  holder.append(fieldset);
  return fieldset;
}

const phases = unique(data.operators.phase.map((i) => words[i]));
const phaseChoices = phases.length > 1 ? [...phases.map((p) => [p, p]), ["", "all"]] : [];
const inPhase = (chosen, phase) => !chosen || chosen === phase;

const FAMILIES = data.families.map(([name, colour, pattern]) => [colour, new RegExp(pattern)]);
const colours = new Map();
function colour(op) {
  if (!colours.has(op)) colours.set(op, (FAMILIES.find((family) => family[1].test(op)) || [data.other])[0]);
  return colours.get(op);
}

// A tooltip beside the pointer or the focused element; it replaces the browser's tooltips for the charts' titles.

const tip = element("div", { id: "tip", role: "tooltip", hidden: "" });

function tell(text, box) {
  const [first, ...rest] = text.split("\n");
  tip.replaceChildren(element("b", {}, first), ...rest.flatMap((line) => [element("br"), line]));
  tip.hidden = false;
  const room = document.documentElement.clientWidth, width = tip.offsetWidth, height = tip.offsetHeight;
  const left = Math.max(4, Math.min(box.left + 12, room - width - 4));
  const above = box.top - height - 10;
  tip.style.left = left + "px";
  tip.style.top = (above > 4 ? above : box.bottom + 14) + "px";
}
const quiet = () => { tip.hidden = true; };
const atPointer = (event) => ({ left: event.clientX, top: event.clientY, bottom: event.clientY });

// Visible text comes first in an element's label; its tooltip follows.
function label(each) {
  const shown = [...each.querySelectorAll("text:not([display=none])")].map((text) => text.textContent).join(" ");
  each.setAttribute("aria-label", [shown, ...each.dataset.tip.split("\n")].filter((text) => text).join(", "));
}

// Show each element's title as a tooltip. Tab reaches one element of a chart; the arrow keys move to the others.
function pointable(chart, elements, next) {
  for (const each of elements) {
    const title = each.querySelector("title");
    each.dataset.tip = title.textContent;
    label(each);
    title.remove();
    each.setAttribute("role", "img");
    each.setAttribute("tabindex", -1);
  }
  if (!elements.length) return;
  chart.setAttribute("role", "group");
  elements[0].setAttribute("tabindex", 0);
  chart.addEventListener("pointermove", (event) => {
    const each = event.target.closest("[data-tip]");
    if (each) tell(each.dataset.tip, atPointer(event));
    else quiet();
  });
  chart.addEventListener("pointerleave", quiet);
  chart.addEventListener("focusin", (event) => {
    const each = event.target.closest("[data-tip]");
    if (each && each.matches(":focus-visible")) tell(each.dataset.tip, each.getBoundingClientRect());
  });
  chart.addEventListener("focusout", quiet);
  chart.addEventListener("keydown", (event) => {
    const each = event.target.closest("[data-tip]"), to = each && next(each, event.key);
    if (!to) return;
    focusOn(elements, to);
    event.preventDefault();
  });
}
function focusOn(elements, to) {
  for (const each of elements) each.setAttribute("tabindex", each === to ? 0 : -1);
  to.focus({ focusVisible: true });
}
const isShown = (each) => !each.closest("[display=none]");

// Where: the modules as tiles, drawn by Python. Entering a module zooms in: it moves and stretches the tiles inside.

const READABLE = 15, LEVEL = 6, VISIBLE = 1.3;  // px, as in icicle.py
const PAPER = { wide: 680, high: 350 };  // px: the chart on paper, where page.css sets its height

function icicle(holder) {
  const chart = holder.querySelector("svg.chart"), tall = chart.height.baseVal.value;
  let paper = false;
  const tiles = [...chart.querySelectorAll(".tile")].map((svg) => {
    const [depth, y, high] = svg.dataset.at.split(" ").map(Number);
    const [name, share] = svg.querySelectorAll("text");
    return { svg, depth, y, high, name, share, said: name.textContent };
  });
  const of = new Map(tiles.map((tile) => [tile.svg, tile]));
  const holds = (a, b) => a.depth <= b.depth && a.y <= b.y + 0.001 && b.y + b.high <= a.y + a.high + 0.001;
  const path = element("nav", { class: "path", "aria-label": "entered modules" });
  holder.prepend(path);
  let entered = tiles[0];

  // Show a tile's name and share: beside each other, on two lines, or the name alone, which is cut off if it is too long.
  function fit({ svg, name, share, said, widths: [long, last] }, room, high) {
    const tight = long + last + 8 > room, stacked = tight && high > 2 * READABLE + 2;
    name.textContent = long > room ? said.slice(0, Math.max(1, Math.floor(said.length * room / long) - 1)) + "…" : said;
    name.setAttribute("dy", stacked ? -4 : 4);
    share.setAttribute("dy", stacked ? 12 : 4);
    if (tight && !stacked) share.setAttribute("display", "none");
    else share.removeAttribute("display");
    label(svg);
  }

  function enter(tile) {
    entered = tile;
    const inside = tiles.filter((each) => holds(tile, each));
    const most = chart.clientWidth < 560 ? 4 : 8;
    const height = paper ? PAPER.high : tall, width = paper ? Math.min(PAPER.wide, chart.clientWidth) : chart.clientWidth;
    const pixels = (each) => each.high / tile.high * height;
    const deepest = Math.max(...inside.filter((each) => pixels(each) >= LEVEL).map((each) => each.depth));
    const levels = Math.min(most, 1 + deepest - tile.depth);
    const visible = new Set(inside.filter((each) => each.depth - tile.depth < levels && pixels(each) >= VISIBLE));
    for (const each of tiles) {
      const { svg } = each;
      if (!visible.has(each)) { svg.setAttribute("display", "none"); continue; }
      svg.removeAttribute("display");
      svg.setAttribute("x", 100 * (each.depth - tile.depth) / levels + "%");
      svg.setAttribute("width", 100 / levels + "%");
      svg.setAttribute("y", 100 * (each.y - tile.y) / tile.high + "%");
      svg.setAttribute("height", 100 * each.high / tile.high + "%");
      svg.classList.toggle("low", pixels(each) < READABLE);
    }
    const named = [...visible].filter((each) => pixels(each) >= READABLE);
    for (const each of named) {
      each.widths ||= [each.name, each.share].map((text) => text.getComputedTextLength());
    }
    for (const each of named) fit(each, width / levels - 11, pixels(each));
    const above = tiles.filter((each) => each.depth < tile.depth && holds(each, tile));
    path.replaceChildren(...above.map((each) => {
      const button = element("button", { type: "button" }, each.said);
      button.addEventListener("click", () => { enter(each); focusOn(svgs, each.svg); });
      return button;
    }), ...(above.length ? [element("b", {}, tile.said)] : []));
  }

  const svgs = tiles.map((tile) => tile.svg);
  pointable(chart, svgs, (svg, key) => {
    const from = of.get(svg), shown = tiles.filter((tile) => isShown(tile.svg));
    const beside = shown.filter((tile) => tile.depth === from.depth);
    const to = {
      ArrowRight: () => shown.find((tile) => tile.depth === from.depth + 1 && holds(from, tile)),
      ArrowLeft: () => shown.find((tile) => tile.depth === from.depth - 1 && holds(tile, from)),
      ArrowDown: () => beside[beside.indexOf(from) + 1], ArrowUp: () => beside[beside.indexOf(from) - 1],
    }[key];
    const tile = to && to();
    return tile && tile.svg;
  });
  function click(svg) {
    const tile = of.get(svg);
    const around = tiles.filter((each) => each.depth < tile.depth && holds(each, tile));
    // A click on the entered module leaves it.
    enter(tile === entered ? around[around.length - 1] || tile : svg.classList.contains("module") ? tile : entered);
    quiet();
    if (document.activeElement === svg || chart.contains(document.activeElement)) focusOn(svgs, isShown(svg) ? svg : entered.svg);
  }
  for (const svg of svgs) if (svg.classList.contains("module")) svg.setAttribute("role", "button");
  chart.addEventListener("click", (event) => {
    const svg = event.target.closest(".tile");
    if (svg) click(svg);
  });
  chart.addEventListener("keydown", (event) => {
    const svg = event.target.closest(".tile");
    if (svg && (event.key === "Enter" || event.key === " ")) {
      click(svg);
      event.preventDefault();
    }
  });
  return (isPaper) => { paper = isPaper; enter(entered); };
}

function where() {
  const charts = [...document.querySelectorAll("#where > [data-key]")];
  if (!charts.length) return;
  const keys = unique(charts.map((chart) => chart.dataset.key)), chosen = { key: charts[0].dataset.key, phase: charts[0].dataset.phase };
  const drawn = new Map();
  let phaseChoice = null;
  function show(isPaper = false) {
    const mine = charts.filter((chart) => chart.dataset.key === chosen.key);
    const shown = mine.find((chart) => chart.dataset.phase === chosen.phase) || mine[0];
    for (const chart of charts) chart.hidden = chart !== shown;
    if (phaseChoice) phaseChoice.hidden = mine.length < 2;
    if (!drawn.has(shown)) {
      if (shown !== charts[0]) shown.innerHTML = data.icicles[charts.indexOf(shown) - 1];
      drawn.set(shown, icicle(shown));
    }
    drawn.get(shown)(isPaper);
  }
  choice($("where-controls"), "size by", keys.map((key) => [key, data.metrics.find((metric) => metric.key === key).label]), chosen.key, (key) => { chosen.key = key; show(); });
  const known = unique(charts.map((chart) => chart.dataset.phase).filter((phase) => phase !== "-"));
  phaseChoice = choice($("where-controls"), "phase", known.map((phase) => [phase, phase || "all"]), chosen.phase, (phase) => { chosen.phase = phase; show(); });
  show();
  $("where-note").textContent = "Click a module to enter it, or move with the arrow keys and press Enter.";
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; show(); } });
  addEventListener("beforeprint", () => show(true));
  addEventListener("afterprint", () => show());
}

// How fast: the roofline's dots; a choice shows those of one phase.

function speed() {
  const chart = document.querySelector("#roofline svg.chart");
  if (!chart) return;
  const dots = [...chart.querySelectorAll(".dot")];
  const place = (dot) => dot.getBoundingClientRect().x;
  pointable(chart, dots, (dot, key) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    const shown = step && dots.filter(isShown).sort((a, b) => place(a) - place(b));
    return shown && shown[shown.indexOf(dot) + step];
  });
  const groups = [...chart.querySelectorAll("[data-phase]")], notes = [...document.querySelectorAll("#bounds > [data-phase]")];
  const known = groups.map((group) => group.dataset.phase);
  function show(phase) {
    for (const group of groups) {
      if (inPhase(phase, group.dataset.phase)) group.removeAttribute("display");
      else group.setAttribute("display", "none");
    }
    for (const note of notes) note.hidden = note.dataset.phase !== phase;
    const first = dots.find(isShown);
    for (const dot of dots) dot.setAttribute("tabindex", dot === first ? 0 : -1);
  }
  if (known.length > 1) choice($("speed-controls"), "phase", [...known.map((phase) => [phase, phase]), ["", "all"]], known[0], show);
}

// Memory over the run: shows what is alive at the pointer, or at a cursor that the arrow keys move.

function memory() {
  const course = data.memory, holders = [...document.querySelectorAll("#course > [data-show]")];
  if (!course || !course.at.length) return;
  const last = course.at.length - 1, end = course.at[last] + 1;
  const names = Object.keys(course.live);
  function said(i) {
    const parts = names.filter((name) => course.live[name][i]).map((name) => `${name} ${size(course.live[name][i])}`);
    const all = size(sum(names.map((name) => course.live[name][i])));
    return [`${all} after ${words[course.op[i]]} in ${words[course.path[i]] || "the model"}`, ...parts].join("\n");
  }
  for (const holder of holders) {
    const chart = holder.querySelector("svg.chart");
    for (const title of chart.querySelectorAll("title")) title.remove();
    const cursor = document.createElementNS(chart.namespaceURI, "line");
    for (const [name, value] of Object.entries({ class: "rule", y1: "0", y2: "100%", display: "none", "stroke-width": 1.5 })) cursor.setAttribute(name, value);
    chart.append(cursor);
    let at = Math.max(course.at.indexOf(course.peak_place), 0);
    function move(i, box) {
      at = i;
      const x = 100 * course.at[i] / end + "%";
      for (const name of ["x1", "x2"]) cursor.setAttribute(name, x);
      cursor.removeAttribute("display");
      chart.setAttribute("aria-valuenow", i);
      chart.setAttribute("aria-valuetext", said(i).replace(/\n/g, ", "));
      if (box) tell(said(i), box);
    }
    const atCursor = () => {
      const box = chart.getBoundingClientRect();
      return { left: box.left + box.width * course.at[at] / end, top: box.top + 40, bottom: box.top + 40 };
    };
    const leave = () => { cursor.setAttribute("display", "none"); quiet(); };
    for (const [name, value] of Object.entries({ role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": last })) chart.setAttribute(name, value);
    move(at, null);
    leave();
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect(), place = Math.floor(end * (event.clientX - box.left) / box.width);
      let i = course.at.findIndex((each) => each > place);
      i = (i < 0 ? last + 1 : i) - 1;
      if (i >= 0) move(i, atPointer(event));
    });
    chart.addEventListener("pointerleave", leave);
    chart.addEventListener("focus", () => { if (chart.matches(":focus-visible")) move(at, atCursor()); });
    chart.addEventListener("blur", leave);
    chart.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageDown: at + 20, PageUp: at - 20, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      move(Math.max(0, Math.min(last, to)), atCursor());
      event.preventDefault();
    });
  }
  const show = (all) => { for (const holder of holders) holder.hidden = holder.dataset.show !== all; };
  choice($("memory-controls"), "show", holders.map((holder) => [holder.dataset.show, holder.dataset.show]), holders[0].dataset.show, show);
}

// Operations: a virtual table, in which only the visible rows exist.

const text = (label, get, width) => ({ label, get, width, text: true });
const number = (label, kind, get, width) => ({ label, kind, get, width: width || 88 });
const anyOf = (values) => values.some((v) => v !== null && v !== undefined);
const ratio = (a, b) => (a !== null && a !== undefined && b ? a / b : null);
const timed = anyOf(data.operators.seconds);
const FIRST_SORT = { calls: timed ? "time" : "FLOPs", operators: timed ? "time" : "FLOPs", modules: null };
const ops = { view: "calls", phase: phases[0] || "", search: "", sort: FIRST_SORT.calls, down: true };

function table() {
  if (ops.view === "modules") return modulesTable();
  const rows = ops.view === "calls" ? data.calls : data.operators;
  const ids = rows.n.map((_, i) => i).filter((i) => inPhase(ops.phase, words[rows.phase[i]]));
  const flops = sum(data.operators.flops.filter((_, i) => inPhase(ops.phase, words[data.operators.phase[i]])));
  const seconds = sum(data.operators.seconds.filter((_, i) => inPhase(ops.phase, words[data.operators.phase[i]])));
  const isCalls = ops.view === "calls", narrow = $("table").clientWidth < 560;
  const columns = [
    isCalls ? number("#", "number", (i) => rows.n[i], 66) : null,
    phases.length > 1 && !ops.phase ? text("phase", (i) => words[rows.phase[i]], 96) : null,
    { ...text("operator", (i) => words[rows.op[i]], narrow ? 110 : 122), dot: true },
    isCalls ? { ...text("module", (i) => words[rows.path[i]], narrow ? 132 : 190), end: true } : number("calls", "number", (i) => rows.calls[i], 80),
    number("MACs", "count", (i) => rows.macs[i]),
    number("FLOPs", "count", (i) => rows.flops[i]),
    { ...number("% FLOPs", "share", (i) => ratio(rows.flops[i], flops), 92), bar: true },
    timed ? number("time", "s", (i) => rows.seconds[i]) : null,
    timed ? { ...number("% time", "share", (i) => ratio(rows.seconds[i], seconds), 88), bar: true } : null,
  ];
  if (isCalls && data.is_prediction !== null) {
    columns.push(
      number("bytes", "B", (i) => rows.bytes[i], 92), number("FLOP/B", "ratio", (i) => ratio(rows.work[i], rows.bytes[i]), 80),
      text("bound by", (i) => words[rows.binds[i]].replace("nothing", "–"), 88));
    if (!data.is_prediction) columns.push(number("efficiency", "share", (i) => ratio(rows.bound_seconds[i], rows.seconds[i]), 94));
  }
  if (isCalls) columns.push(text("tensors", (i) => words[rows.missing[i]] || words[rows.shapes[i]], 200));
  const shown = columns.filter((c) => c);
  if (narrow) shown.sort((a, b) => ["#", "MACs"].includes(a.label) - ["#", "MACs"].includes(b.label));
  return { columns: shown, ids, noun: isCalls ? "calls" : "operators", missing: (i) => words[rows.missing[i]], flops: (i) => rows.flops[i], seconds: (i) => rows.seconds[i] };
}

const tiles = data.tiles;

function totals(tiles, key, phase) {
  const all = tiles.parent.map(() => 0);
  for (const metric of data.metrics) {
    if (metric.key === key && (!metric.phase || inPhase(phase, metric.phase))) {
      tiles.own[metric.name].forEach((value, i) => { all[i] += value; });
    }
  }
  for (let i = all.length - 1; i > 0; i--) all[tiles.parent[i]] += all[i];
  return all;
}

function modulesTable() {
  const depth = [];
  tiles.parent.forEach((parent, i) => depth.push(parent < 0 ? 0 : depth[parent] + 1));
  const inside = tiles.parent.map(() => []), ids = [], keys = [...new Map(data.metrics.map((metric) => [metric.key, metric])).values()];
  tiles.parent.forEach((parent, i) => { if (parent >= 0) inside[parent].push(i); });
  (function walk(i) { ids.push(i); inside[i].forEach(walk); })(0);
  const found = new Map(keys.map((metric) => [metric.key, totals(tiles, metric.key, ops.phase)]));
  const columns = [
    { ...text("module", (i) => words[tiles.path[i]] || words[tiles.name[i]], 270), show: (i) => words[tiles.name[i]], indent: (i) => depth[i] },
    text("class", (i) => words[tiles.cls[i]], 140),
    number("calls", "number", (i) => tiles.calls[i] || null, 70),
  ];
  for (const metric of keys) {
    const get = (i) => found.get(metric.key)[i];
    columns.push(number(metric.key === "memory" ? "held at peak" : metric.label, metric.kind, get, metric.key === "memory" ? 124 : 88));
    if (metric.key === "flops" || metric.key === "time") columns.push({ ...number("% " + metric.label, "share", (i) => ratio(get(i), get(0))), bar: true });
  }
  if (anyOf(tiles.peak)) columns.push(number("peak in it", "B", (i) => tiles.peak[i], 104));
  return { columns, ids: ids.filter((i) => words[tiles.cls[i]] || [...found.values()].some((all) => all[i])), noun: "modules", missing: () => "", flops: null };
}

let shown = null;

function arrange() {
  const found = table();
  const wanted = ops.search.toLowerCase().split(/\s+/).filter((word) => word);
  const texts = found.columns.filter((column) => column.text);
  let ids = found.ids;
  if (wanted.length) {
    ids = ids.filter((i) => {
      const all = texts.map((column) => column.get(i)).join(" ").toLowerCase();
      return wanted.every((word) => all.includes(word));
    });
  }
  const by = found.columns.find((column) => column.label === ops.sort);
  if (by) {
    const sign = ops.down ? -1 : 1, none = (v) => v === null || v === undefined || v === "";
    const values = new Map(ids.map((i) => [i, by.get(i)]));
    const place = new Map(ids.map((i, at) => [i, at]));
    ids = ids.slice().sort((a, b) => {
      const x = values.get(a), y = values.get(b);
      if (none(x) || none(y)) return none(x) - none(y) || place.get(a) - place.get(b);
      return sign * (by.text ? x.localeCompare(y) : x - y) || place.get(a) - place.get(b);
    });
  }
  for (const column of found.columns) if (column.bar) column.most = Math.max(...found.ids.map((i) => column.get(i) || 0).filter((v) => v < 1), 0) || 1;
  shown = { ...found, ids, inAll: found.ids.length };
  const grid = $("table"), width = sum(found.columns.map((column) => column.width));
  const heads = found.columns.map((column) => {
    const button = element("button", { type: "button" }, column.label);
    button.addEventListener("click", () => sortBy(column));
    const sorted = column === by ? (ops.down ? "descending" : "ascending") : "none";
    return element("th", { class: column.text ? null : "n", scope: "col", "aria-sort": sorted }, button);
  });
  const made = element("table", { "aria-rowcount": ids.length + 1, style: { tableLayout: "fixed", minWidth: width + "px" } },
    element("colgroup", {}, ...found.columns.map((column) => element("col", { style: { width: column.width + "px" } }))),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}));
  grid.replaceChildren(made);
  grid.scrollTop = 0;
  paint();
  note();
}

function sortBy(column) {
  ops.down = ops.sort === column.label ? !ops.down : !column.text;
  ops.sort = column.label;
  arrange();
  const head = [...$("table").querySelectorAll("th")].find((th) => th.getAttribute("aria-sort") !== "none");
  if (head) head.firstChild.focus();
}

function cell(column, i) {
  const value = column.get(i);
  if (column.text) {
    const said = (column.show ? column.show(i) : value) || "";
    const td = element("td", { title: value || null, class: column.end ? "end" : null }, column.end ? element("bdi", {}, said) : said);
    if (column.dot) td.prepend(element("span", { class: "dot", style: { background: colour(value) } }));
    if (column.indent) td.style.paddingLeft = 10 + (ops.sort ? 0 : 16 * column.indent(i)) + "px";
    if (column.indent && ops.sort) td.lastChild.textContent = value;
    return td;
  }
  if (value === null || value === undefined) return element("td", { class: "n" }, "–");
  const kind = KINDS[column.kind];
  const td = element("td", { class: "n" + (column.bar ? " bar" : "") + (value ? "" : " zero"), title: kind.exact(value) }, kind.show(value));
  if (column.bar) td.style.backgroundSize = `${100 * Math.min(value / column.most, 1)}% 64%`;
  return td;
}

function paint(printed) {
  const grid = $("table"), body = grid.querySelector("tbody");
  const first = printed ? 0 : Math.max(0, Math.floor(grid.scrollTop / ROW) - 10);
  const last = Math.min(shown.ids.length, printed || first + Math.ceil((grid.clientHeight || 560) / ROW) + 24);
  const gap = (rows) => (rows ? [element("tr", { class: "gap", "aria-hidden": "true" }, element("td", { colspan: shown.columns.length, style: { height: rows * ROW + "px" } }))] : []);
  const rows = shown.ids.slice(first, last).map((i, at) => {
    const tr = element("tr", { "aria-rowindex": first + at + 2, class: shown.missing(i) ? "uncounted" : null });
    tr.append(...shown.columns.map((column) => cell(column, i)));
    return tr;
  });
  body.replaceChildren(...gap(first), ...rows, ...(printed ? [] : gap(shown.ids.length - last)));
}

function note() {
  const parts = [`${grouped(shown.ids.length)}${shown.ids.length < shown.inAll ? " of " + grouped(shown.inAll) : ""} ${shown.noun}`];
  if (shown.flops && shown.ids.length < shown.inAll) {
    parts.push(`${count(sum(shown.ids.map(shown.flops)))} FLOPs`);
    if (timed) parts.push(time(sum(shown.ids.map(shown.seconds))));
  }
  let said = parts.join(", ") + ".";
  if (ops.view === "calls" && data.calls.n.length < data.calls_in_all) {
    const share = data.calls_share;
    const held = [["FLOPs", share.flops], ["the time", share.time]].filter((s) => s[1] !== null).map((s) => `${percent(s[1])} of ${s[0]}`);
    said += ` Only the ${grouped(data.calls.n.length)} most expensive of ${grouped(data.calls_in_all)} calls are in this page${held.length ? ": " + held.join(", ") : ""}.`;
  }
  $("ops-note").textContent = said;
  $("ops-printed").textContent = shown.ids.length > MOST_PRINTED ? `The first ${MOST_PRINTED} are printed.` : "";
}

// Paper does not scroll, so print the table's first rows.
addEventListener("beforeprint", () => paint(MOST_PRINTED));
addEventListener("afterprint", () => paint());

function controls() {
  const views = [["calls", "calls"], ["operators", "by operator"], ["modules", "by module"]];
  choice($("ops-controls"), "rows", views, ops.view, (view) => { ops.view = view; ops.sort = FIRST_SORT[view]; ops.down = true; arrange(); });
  choice($("ops-controls"), "phase", phaseChoices, ops.phase, (phase) => { ops.phase = phase; arrange(); });
  const search = element("input", { type: "search", id: "search", placeholder: "operator, module, shape", autocomplete: "off" });
  search.addEventListener("input", () => { ops.search = search.value; arrange(); });
  $("ops-controls").append(element("fieldset", {}, element("label", { class: "name", for: "search" }, "search"), search));
  let waiting = false;
  $("table").addEventListener("scroll", () => {
    if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; paint(); }); }
  });
}

document.body.append(tip);
addEventListener("keydown", (event) => { if (event.key === "Escape") quiet(); });
controls();
arrange();
if (data.graph) $("graph").src = "data:image/svg+xml," + encodeURIComponent(data.graph);
where();
speed();
memory();
document.documentElement.dataset.ready = Math.round(performance.now());
})();
