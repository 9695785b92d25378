(function () {
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const words = data.words;
const $ = (id) => document.getElementById(id);
const ROW = 28;  // px, as in the style
// A colour means one family of operators, in every page. Bounds and memory have colours of their own.
const { other: OTHER, binds: BINDS, categories: CATEGORIES } = data.palette, GREY = OTHER[1];
const FAMILIES = data.palette.families.map(([name, colour, pattern]) => [name, colour, new RegExp(pattern)]);
// Nothing leaves the page: no button that would send a chart to plotly's server.
const CONFIG = {
  displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

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
const rate = (v, unit) => { const text = count(v); return text + (/[a-zA-Z]$/.test(text) ? "" : " ") + unit; };
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

// Plotly takes some HTML in the texts that it draws.
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue("--" + name).trim();
  return { ink: read("ink"), soft: read("soft"), line: read("line"), panel: read("panel"), tile: read("tile") };
}

function base(margin) {
  const t = theme();
  const axis = { gridcolor: t.line, linecolor: t.line, zeroline: false, tickfont: { color: t.soft }, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin,
    font: { color: t.ink, size: 12, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: t.panel, bordercolor: t.soft, font: { color: t.ink, size: 12.5 }, align: "left", namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: t.soft, activecolor: t.ink },
    xaxis: { ...axis }, yaxis: { ...axis },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: t.ink }, itemsizing: "constant" },
  };
}

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
  if (options.length < 2) return;
  const name = "choice" + choices++;
  const labels = options.map(([value, label]) => {
    const input = element("input", { type: "radio", name, value });
    input.checked = value === current;
    input.addEventListener("change", () => chosen(value));
    return element("label", {}, input, element("span", {}, label));
  });
  holder.append(element("fieldset", {}, element("legend", {}, title), element("div", { class: "choice" }, ...labels)));
}

const phases = [...new Set(data.operators.phase.map((i) => words[i]))];
const phaseChoices = phases.length > 1 ? [...phases.map((p) => [p, p]), ["", "all"]] : [];
const inPhase = (chosen, phase) => !chosen || chosen === phase;

const families = new Map();
function familyOf(op) {
  if (!families.has(op)) families.set(op, FAMILIES.find((family) => family[2].test(op)) || OTHER);
  return families.get(op);
}
const colour = (op) => familyOf(op)[1];

// Where: the modules as tiles.

const tiles = data.tiles;
tiles.times = tiles.parent.map(() => 1);

function totals(tiles, key, phase) {
  const all = tiles.parent.map(() => 0);
  for (const metric of data.metrics) {
    if (metric.key === key && (!metric.phase || inPhase(phase, metric.phase))) {
      tiles.own[metric.name].forEach((value, i) => { all[i] += value; });
    }
  }
  const own = all.slice();
  for (let i = all.length - 1; i > 0; i--) all[tiles.parent[i]] += all[i];
  return { own, all };
}

function insideOf(tiles) {
  const inside = tiles.parent.map(() => []);
  tiles.parent.forEach((parent, i) => { if (parent >= 0) inside[parent].push(i); });
  return inside;
}

// Merge consecutive siblings that are identical all the way down into one tile with the sums of their values.
function folded(tiles) {
  const inside = insideOf(tiles), counted = data.metrics.filter((metric) => metric.kind === "count").map((metric) => tiles.own[metric.name]);
  const kinds = new Map(), likeness = tiles.parent.map(() => 0);
  for (let i = tiles.parent.length - 1; i >= 0; i--) {
    // An "(own)" tile is named after its slowest operator, which may differ between identical modules: leave its name out.
    const children = inside[i].map((child) => [tiles.cls[child] ? tiles.name[child] : "", likeness[child]]);
    const key = JSON.stringify([tiles.cls[i], tiles.calls[i], counted.map((own) => own[i]), children]);
    if (!kinds.has(key)) kinds.set(key, kinds.size);
    likeness[i] = kinds.get(key);
  }
  const made = { name: [], cls: [], path: [], op: [], parent: [], calls: [], times: [], own: {} };
  for (const metric of data.metrics) made.own[metric.name] = [];
  (function add(same, parent) {  // same: the tiles at one position in identical modules
    const place = made.parent.length, first = same[0], names = same.map((i) => words[tiles.name[i]]);
    const name = same.length > 1 && tiles.cls[first] && new Set(names).size > 1 ? `${names[0]}..${names[names.length - 1]}` : names[0];
    const path = words[tiles.path[first]];
    made.parent.push(parent);
    made.name.push(name);
    made.path.push(same.length > 1 && path ? `${path} and ${grouped(same.length - 1)} alike` : path);
    for (const column of ["cls", "op"]) made[column].push(words[tiles[column][first]]);
    made.calls.push(sum(same.map((i) => tiles.calls[i])));
    made.times.push(same.length);
    for (const metric of data.metrics) made.own[metric.name].push(sum(same.map((i) => tiles.own[metric.name][i])));
    for (let from = 0, children = inside[first]; from < children.length;) {
      let to = from + 1;
      while (tiles.cls[children[from]] && to < children.length && likeness[children[to]] === likeness[children[from]]) to++;
      add(same.flatMap((i) => inside[i].slice(from, to)), place);
      from = to;
    }
  })([0], -1);
  return made;
}

function apart() {
  const said = (column) => tiles[column].map((i) => words[i]);
  return { ...tiles, name: said("name"), cls: said("cls"), path: said("path"), op: said("op") };
}

const drawings = { alike: folded(tiles), each: apart() };
const canFold = drawings.alike.parent.length < tiles.parent.length;

const keys = [...new Map(data.metrics.map((metric) => [metric.key, metric])).values()];
const where = { key: keys.length ? keys[0].key : "", shape: "icicle", phase: phases[0] || "", alike: canFold };

function drawWhere() {
  const metric = keys.find((each) => each.key === where.key);
  if (!metric) { $("where-note").textContent = "Nothing was counted."; $("where").hidden = true; return; }
  const t = theme(), kind = KINDS[metric.kind], phase = metric.phase ? where.phase : "";
  const drawn = where.alike ? drawings.alike : drawings.each;
  const { own, all } = totals(drawn, metric.key, phase);
  // Beside a module that has all but a thousandth, the rest of what is in the one around them could not be seen.
  const inside = insideOf(drawn).map((children, i) => {
    const most = children.find((child) => drawn.cls[child] && all[child] > 0.999 * all[i]);
    return most === undefined || drawings.each === drawn ? children.filter((child) => all[child] > 0) : [most];
  });
  // A tile that holds all that is in the one around it says nothing new: they are one, under the names of both.
  const top = all.map((_, i) => i), end = all.map((_, i) => i), last = all.map((_, i) => i), names = drawn.name.slice();
  inside.forEach((children, i) => {
    if (children.length !== 1 || all[children[0]] < 0.999 * all[i]) return;
    const [child] = children, into = top[i];
    top[child] = into;
    end[into] = child;
    if (drawn.cls[child]) {
      last[into] = child;
      if (into) names[into] += "." + drawn.name[child];
    }
  });
  const isHolder = end.map((i) => inside[i].length > 0);
  const above = (i) => (drawn.parent[i] < 0 ? -1 : top[drawn.parent[i]]);
  const inSight = new Set(inside.flat()), kept = [];
  all.forEach((value, i) => { kept[i] = i ? inSight.has(i) && kept[drawn.parent[i]] : value > 0; });
  const shown = all.map((_, i) => i).filter((i) => kept[i] && top[i] === i);
  const opOf = (i) => drawn.op[end[i]];
  const about = (i) => drawn.path[last[i]] || (drawn.parent[i] > 0 ? drawn.path[drawn.parent[i]] : "the model");
  const times = (i) => drawn.times[last[i]];
  const each = (i) => (times(i) > 1 ? ` x${grouped(times(i))}` : "");
  const depths = new Map();
  for (const i of shown) depths.set(i, above(i) < 0 ? 1 : depths.get(above(i)) + 1);
  const narrow = $("where").clientWidth < 560, most = where.shape === "treemap" ? 6 : narrow ? 4 : 8;
  const room = $("where").clientWidth / Math.min(most, Math.max(...depths.values()));  // of a column; its share stands below the name, or beside it
  const letters = narrow ? Math.floor(room / 7.2) - 1 : where.shape === "icicle" ? Math.floor(room / 6.6) - 8 : Infinity;
  const cut = (name, times) => (name.length + times.length > letters ? name.slice(0, letters - times.length - 1).replace(/\W+$/, "") + "…" : name) + times;
  const trace = {
    type: where.shape, branchvalues: "remainder", sort: where.shape === "treemap", leaf: { opacity: 1 },
    ids: shown.map(String),
    parents: shown.map((i) => (above(i) < 0 ? "" : String(above(i)))),
    labels: shown.map((i) => safe(cut(names[i], above(i) >= 0 && times(i) > times(above(i)) ? each(i) : ""))),
    values: shown.map((i) => (isHolder[i] ? own[end[i]] : all[i])),
    customdata: shown.map((i) => [
      safe(about(i)), safe((drawn.cls[last[i]] || drawn.name[i]) + each(i)), kind.show(all[i]), kind.exact(all[i]), percent(all[i] / all[0]),
      (times(i) > 1 ? `<br>${kind.show(all[i] / times(i))} each on average` : "") +
      (drawn.calls[last[i]] > 1 ? `<br>called ${grouped(drawn.calls[last[i]])} times` : ""),
    ]),
    texttemplate: where.shape === "treemap" ? "%{label}<br>%{customdata[2]}" : narrow ? "%{label}<br>%{customdata[4]}" : "%{label}  %{customdata[4]}",
    hovertemplate: "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}, %{customdata[4]} of all" +
      "<br>%{customdata[3]}%{customdata[5]}<extra></extra>",
    marker: {
      colors: shown.map((i) => (isHolder[i] ? t.tile : colour(opOf(i)))),
      line: { color: t.panel, width: 1 }, pad: { t: 20, l: 3, r: 3, b: 3 },
    },
    tiling: where.shape === "icicle" ? { orientation: "h", pad: 0 } : { pad: 2 },
    pathbar: { visible: true, thickness: 22 },
    maxdepth: most,
    textposition: where.shape === "icicle" ? "middle left" : "top left",
  };
  const layout = { ...base({ t: 4, b: 4, l: 4, r: 4 }), uniformtext: { minsize: 10.5, mode: "hide" } };
  Plotly.react("where", [trace], layout, CONFIG);
  listen();
  const used = new Set(shown.filter((i) => !isHolder[i]).map((i) => familyOf(opOf(i))));
  $("legend").replaceChildren(...[...FAMILIES, OTHER].filter((family) => used.has(family)).map(([name, c]) =>
    element("li", {}, element("span", { class: "dot", style: { background: c } }), name)));
  const notes = [`${metric.label}${phase ? " of the " + phase : ""}: ${metric.kind === "count" && !data.complete && metric.key !== "params" ? "≥ " : ""}${kind.show(all[0])} in all. Click a module to enter it, or go with the arrow keys and press Enter.`];
  if (metric.key === "memory") notes.push("Bytes alive at the peak: those that the module allocated, and its parameters.");
  if (data.tiles_left_out) notes.push(`${grouped(data.tiles_left_out)} modules further inside are not drawn apart.`);
  $("where-note").textContent = notes.join(" ");
}

// The tiles by keyboard: one of them can be reached by Tab, the others from it by the arrow keys; Enter clicks.
let focused = null;
function listen() {
  if (listen.done) return;
  listen.done = true;
  $("where").on("plotly_afterplot", reachable);
  $("where").addEventListener("keydown", (event) => {
    const slice = event.target.closest("g.slice");
    if (!slice) return;
    const node = slice.__data__, beside = node.parent ? node.parent.children : [node];
    const to = {
      ArrowRight: () => node.children && node.children[0], ArrowLeft: () => node.parent,
      ArrowDown: () => beside[beside.indexOf(node) + 1], ArrowUp: () => beside[beside.indexOf(node) - 1],
    }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      focused = idOf(slice);
      slice.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    } else if (to) {
      const next = to(), found = next && [...$("where").querySelectorAll("g.slice")].find((each) => idOf(each) === next.data.id);
      if (found) focus(found);
    } else return;
    event.preventDefault();
  });
}
const idOf = (slice) => slice.__data__.data.id;
function focus(slice) {
  for (const each of $("where").querySelectorAll("g.slice")) each.setAttribute("tabindex", each === slice ? 0 : -1);
  slice.focus();
}
function reachable() {
  const slices = [...$("where").querySelectorAll("g.slice")];
  for (const slice of slices) {
    slice.setAttribute("role", "button");
    slice.setAttribute("tabindex", slice === slices[0] ? 0 : -1);
    slice.setAttribute("aria-label", slice.querySelector("text")?.textContent.trim() || String(slice.__data__.data.data.label));
  }
  const again = focused && slices.find((slice) => idOf(slice) === focused);
  focused = null;
  if (again) focus(again);
}

// How fast: the calls under the device's ceilings.

const speed = { phase: phases[0] || "" };
const MOST_POINTS = 2000;

function drawSpeed() {
  const found = data.roofline, calls = data.calls, t = theme();
  if (!found) return;
  const took = (i) => (found.is_prediction ? calls.bound_seconds[i] : calls.seconds[i]);
  let points = [];
  for (let i = 0; i < calls.n.length; i++) {
    if (inPhase(speed.phase, words[calls.phase[i]]) && calls.work[i] && calls.bytes[i] && took(i)) points.push(i);
  }
  points.sort((a, b) => took(b) - took(a));
  const inAll = points.length;
  points = points.slice(0, MOST_POINTS);
  const x = (i) => calls.work[i] / calls.bytes[i], y = (i) => calls.work[i] / took(i);
  const most = points.length ? took(points[0]) : 1;
  const traces = Object.keys(BINDS).map((kind) => {
    const mine = points.filter((i) => words[calls.binds[i]] === kind);
    return {
      type: "scatter", mode: "markers", name: kind === "nothing" ? kind : "bound by " + kind, x: mine.map(x), y: mine.map(y),
      marker: {
        color: BINDS[kind][0], symbol: BINDS[kind][1], opacity: 0.7, line: { color: t.panel, width: 0.7 },
        size: mine.map((i) => 5 + 17 * Math.sqrt(took(i) / most)),
      },
      customdata: mine.map((i) => [
        safe(words[calls.op[i]]), safe(words[calls.path[i]] || "the model"), safe(words[calls.shapes[i]]), time(took(i)),
        percent(calls.bound_seconds[i] / took(i)), time(calls.bound_seconds[i]), rate(y(i), "FLOP/s"), x(i).toPrecision(3),
      ]),
      hovertemplate: "<b>%{customdata[0]}</b> %{customdata[1]}<br>%{customdata[2]}<br>%{customdata[6]} at %{customdata[7]} FLOP/B" +
        "<br>%{customdata[3]}, at least %{customdata[5]} (%{customdata[4]})<extra></extra>",
    };
  }).filter((trace) => trace.x.length);
  const peaks = Object.entries(found.peaks), top = Math.max(...peaks.map((p) => p[1]), 1);
  const ridge = top / found.bandwidth;
  const left = Math.min(ridge / 100, ...points.map(x)) / 2, right = Math.max(ridge * 10, ...points.map(x)) * 2;
  const bottom = Math.min(top / 1000, ...points.map(y)) / 2;
  const annotations = [];
  const say = (px, py, text, more) => annotations.push({
    x: Math.log10(px), y: Math.log10(py), text: safe(text), showarrow: false, font: { size: 11, color: t.soft }, bgcolor: t.panel, opacity: 0.85, ...more,
  });
  const line = (xs, ys, dash, width) => traces.push({
    type: "scatter", mode: "lines", x: xs, y: ys, line: { color: t.soft, dash, width }, hoverinfo: "skip", showlegend: false,
  });
  for (const [dtype, peak] of peaks) {
    line([peak / found.bandwidth, right], [peak, peak], "solid", 1.8);
    say(right, peak, `${dtype} ${rate(peak, "FLOP/s")}`, { xanchor: "right", yanchor: "bottom" });
  }
  const slope = (speedOf, dash, width, text) => {
    const from = Math.max(left, bottom / speedOf);
    line([from, top / speedOf], [from * speedOf, top], dash, width);
    if (text) say(from, from * speedOf, text, { xanchor: "left", yanchor: "bottom", yshift: 4, xshift: 4 });
  };
  slope(found.bandwidth, "solid", 1.8, "");
  const flattest = Math.max(left, bottom / found.bandwidth);
  const flow = "memory " + rate(found.bandwidth, "B/s"), narrow = $("roofline").clientWidth < 560;
  if (!narrow) {
    say(Math.sqrt(flattest * ridge), Math.sqrt(flattest * ridge) * found.bandwidth, flow,
      { xanchor: "left", yanchor: "top", xshift: 6, yshift: -2 });
  }
  for (const [bytes, fast] of found.caches) if (fast > 1.05 * found.bandwidth) slope(fast, "dot", 1, "");
  const layout = base({ t: 34, b: 46, l: 60, r: 16 });
  const ticks = (low, high, text) => {
    const all = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) all.push(e);
    return { tickmode: "array", tickvals: all.map((e) => 10 ** e), ticktext: all.map((e) => text(10 ** e)) };
  };
  const short = (v) => (v >= 1 ? count(v).replace(/\.0+( |$)/, "$1") : String(Number(v.toPrecision(1))));
  const range = (low, high) => [Math.log10(low), Math.log10(high)];
  Object.assign(layout.xaxis, { type: "log", range: range(left, right), title: { text: "FLOP for each byte moved" }, ...ticks(left, right, short) });
  Object.assign(layout.yaxis, {
    type: "log", range: range(bottom, 2.5 * Math.max(top, ...points.map(y))), title: { text: found.is_prediction ? "FLOP/s at most" : "FLOP/s" },
    ...ticks(bottom, top * 3, short),
  });
  const high = 2.5 * Math.max(top, ...points.map(y)), width = $("roofline").clientWidth - 76, height = $("roofline").clientHeight - 80;
  const place = (i) => [width * Math.log(x(i) / left) / Math.log(right / left), height * Math.log(y(i) / bottom) / Math.log(high / bottom)];
  const letters = Math.min(34, Math.floor(width / 15));
  const labelled = [], dots = points.map(place);
  for (const i of points) {  // the dearest of each kind, where there is room and the fewest dots are covered
    const kind = words[calls.op[i]] + words[calls.path[i]].replace(/\d+/g, "*"), [px, py] = place(i);
    const path = words[calls.path[i]].split(".");  // of a long one the end
    while (path.length > 1 && path.join(".").length > letters) path.shift();
    const named = path.join(".").length < words[calls.path[i]].length ? `…${path.join(".")}` : path.join(".");
    const text = `${words[calls.op[i]]} ${named}`, inward = px > width / 2 ? -1 : 1, places = [];
    for (const [side, up] of [[inward, -18], [-inward, -18], [inward, 18], [inward, -44]]) {
      const at = py + up, [from, to] = [px + 26 * side, px + (26 + 6.2 * text.length) * side].sort((a, b) => a - b);
      if (from < 0 || to > width || at < 22 || at > height) continue;
      if (labelled.some((other) => from < other.to && other.from < to && Math.abs(at - other.at) < 19)) continue;
      places.push({ side, at, from, to, covered: dots.filter(([dx, dy]) => from - 6 < dx && dx < to + 6 && Math.abs(dy - at) < 14).length });
    }
    const best = places.sort((a, b) => a.covered - b.covered)[0];
    if (labelled.length > 4 || !best || labelled.some((other) => other.kind === kind)) continue;
    const { side, at, from, to } = best;
    labelled.push({ kind, from, to, at });
    annotations.push({
      x: Math.log10(x(i)), y: Math.log10(y(i)), text: safe(text), font: { size: 11, color: t.ink },
      bgcolor: t.panel, opacity: 0.85, ax: 26 * side, ay: py - at, xanchor: side < 0 ? "right" : "left", arrowwidth: 1, arrowhead: 0, arrowcolor: t.soft,
    });
  }
  layout.annotations = annotations;
  Plotly.react("roofline", traces, layout, CONFIG);
  $("bounds").textContent = boundsText(found) + (narrow ? ` The slope: ${flow}.` : "") + (inAll > points.length ? ` The ${grouped(points.length)} longest calls are drawn.` : "") +
    (found.caches.length ? " Dotted: what fits in a cache." : "");
}

function boundsText(found) {
  const kinds = {};
  let least = 0, took = 0;
  for (const [phase, bounds] of Object.entries(found.bounds)) {
    if (!inPhase(speed.phase, phase)) continue;
    for (const [kind, [bound, seconds]] of Object.entries(bounds)) {
      kinds[kind] = (kinds[kind] || 0) + bound;
      least += bound;
      took += seconds || 0;
    }
  }
  const parts = Object.entries(kinds).filter((k) => k[1] > 0).map(([kind, s]) => `${kind} ${time(s)} (${percent(s / least)})`);
  const start = `On ${found.device} (${found.source}) the calls take at least ${time(least)}: ${parts.join(", ")}.`;
  return took ? `${start} They took ${time(took)}: ${percent(least / took)} efficient.` : `${start} Not measured: a prediction.`;
}

// Memory over the run.

const FIXED = ["params", "buffers", "inputs", "optimizer"];
const course = data.memory;
const fixed = course ? Object.keys(course.live).filter((name) =>
  FIXED.includes(name) && course.live[name].every((v) => v === course.live[name][0])) : [];
const memory = { all: !(course && fixed.length && sum(fixed.map((n) => course.live[n][0])) > 0.5 * course.peak) };

function drawMemory() {
  if (!course) return;
  const t = theme(), layout = base({ t: 52, b: 40, l: 70, r: 16 });
  const names = Object.keys(course.live).filter((name) => memory.all || !fixed.includes(name));
  const heights = course.at.map((_, i) => sum(names.map((name) => course.live[name][i])));
  // What is the same throughout is a band at the bottom, not to scale: ticks above it say what it holds with the rest.
  const hidden = memory.all ? 0 : sum(fixed.map((name) => course.live[name][0]));
  const peak = course.peak - hidden, band = hidden ? 0.16 * Math.max(peak, ...heights, 1) : 0;
  const kept = fixed.filter((name) => course.live[name][0]);
  const area = (name, values, more) => ({
    type: "scatter", mode: "lines", stackgroup: "live", name, x: course.at, y: values, hoverinfo: "skip",
    line: { shape: "hv", width: 0.5, color: CATEGORIES[name] || GREY }, fillcolor: CATEGORIES[name] || GREY, ...more,
  });
  const traces = names.map((name) => area(name, course.live[name]));
  if (band) {
    const most = kept.reduce((a, b) => (course.live[b][0] > course.live[a][0] ? b : a));
    traces.unshift(area(most, course.at.map(() => band), { showlegend: false }));
  }
  traces.push({
    type: "scatter", mode: "lines", x: course.at, y: heights.map((v) => v + band), line: { width: 0, color: t.ink }, showlegend: false,
    customdata: course.at.map((_, i) => [
      safe(words[course.op[i]]), safe(words[course.path[i]] || "the model"), size(heights[i] + hidden),
      names.filter((name) => course.live[name][i]).map((name) => `<br>${safe(name)} ${size(course.live[name][i])}`).join(""),
    ]),
    hovertemplate: "<b>%{customdata[2]}</b> after %{customdata[0]} in %{customdata[1]}%{customdata[3]}<extra></extra>",
  });
  const at = course.at[course.peak_place] || 0;
  const end = course.at[course.at.length - 1] || 1, room = $("course").clientWidth - 90;
  const whole = `peak ${size(course.peak)}` + (words[course.peak_at] ? ` in ${words[course.peak_at]}` : "");
  const text = 6.6 * whole.length < 0.6 * room ? whole : `peak ${size(course.peak)}`, half = 3.3 * text.length;
  traces.push({
    type: "scatter", mode: "markers", x: [at], y: [peak + band], showlegend: false, cliponaxis: false, hoverinfo: "skip",
    marker: { color: t.ink, size: 9, symbol: "diamond", line: { color: t.panel, width: 1.5 } },
  });
  const line = (more) => ({ type: "line", line: { color: t.soft, dash: "dash", width: 1 }, ...more });
  const label = (more) => ({ showarrow: false, font: { color: t.soft, size: 11 }, ...more });
  layout.annotations = [label({
    x: at, y: peak + band, text: safe(text), yanchor: "bottom", yshift: 6, bgcolor: t.panel, opacity: 0.9,
    xanchor: room * at / end < half ? "left" : room * at / end > room - half ? "right" : "center", font: { color: t.ink, size: 12 },
  })];
  layout.shapes = [line({ xref: "paper", x0: 0, x1: 1, y0: peak + band, y1: peak + band, line: { color: t.soft, dash: "dot", width: 1 } })];
  if (band) {
    layout.shapes.push(line({ xref: "paper", x0: 0, x1: 1, y0: band, y1: band, line: { color: t.panel, dash: "dashdot", width: 3 } }));
    const said = kept.map((name) => `${name} ${size(course.live[name][0])}`);
    const text = room < 420 ? said[0] + (said.length > 1 ? " …" : "") : said.join(" · ") + ", throughout (not to scale)";
    layout.annotations.push(label({ xref: "paper", x: 0.5, y: band / 2, text: safe(text), font: { color: "#1b1f27", size: 12 } }));
  }
  let free = -1;  // the labels of phases stand above the chart, each where the one before leaves room
  course.phase.forEach((phase, i) => {
    if (i && phase === course.phase[i - 1]) return;
    const x = course.at[i], px = room * x / end, name = words[phase];
    if (i) layout.shapes.push(line({ yref: "paper", y0: 0, y1: 1, x0: x, x1: x }));
    if (px < free || phases.length < 2) return;
    free = px + 7 * name.length + 14;
    layout.annotations.push(label({ x, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", xshift: 2, text: safe(name) + " →" }));
  });
  const high = 1.15 * Math.max(peak, ...heights, 1);
  const ticks = byteTicks(high, hidden);
  Object.assign(layout.yaxis, { range: [0, high + band], fixedrange: true, tickmode: "array", tickvals: ticks.tickvals.map((v) => v + band), ticktext: ticks.ticktext });
  if (band) {
    layout.yaxis.tickvals.unshift(0);
    layout.yaxis.ticktext = ["0 B", ...layout.yaxis.ticktext];
  }
  layout.legend.y = 1.09;
  Object.assign(layout.xaxis, { title: { text: "calls that allocate or free, in run order" }, range: [0, end] });
  layout.hovermode = "x";
  Plotly.react("course", traces, layout, CONFIG);
  const notes = [];
  if (band) notes.push(`The same throughout: ${kept.map((name) => `${name} ${size(course.live[name][0])}`).join(", ")}.`);
  if (course.in_all > course.at.length) notes.push(`${grouped(course.at.length)} of ${grouped(course.in_all)} states drawn, the highest of each stretch.`);
  if (peak > Math.max(...heights, 0)) notes.push("The area is what is alive after each call; within one it may be more, as at the peak.");
  notes.push(`Read from: ${course.source}.`);
  $("memory-note").textContent = notes.join(" ");
}

function byteTicks(high, from) {
  let step = 1;
  while (high / step > 6) step *= 2;
  const tickvals = [];
  for (let v = 0; v <= high; v += step) tickvals.push(v);
  return { tickvals, ticktext: tickvals.map((v) => (from && v ? "+" : "") + size(v || from).replace(/\.0+ /, " ")) };
}

function fillOwners() {
  if (!course) return;
  const cells = (tag, texts) => element("tr", {}, ...texts.map((text, i) => element(tag, { class: i < 2 ? "n" : null }, text)));
  const rows = course.owners.map((held) => {
    const many = held.tensors > 1 ? `${grouped(held.tensors)} tensors` : held.shape;
    const made = held.path || (held.tensors === 1 && held.op && held.shape ? "the model" : "");
    const by = held.path || held.tensors < 2 ? ["", held.op] : [held.op && " " + held.op, ""];  // the kind of optimizer state, or the operator
    const row = cells("td", [size(held.bytes), percent(held.bytes / course.peak), held.category + by[0], made, by[1], many]);
    row.cells[0].title = exactly(held.bytes) + " bytes";
    row.cells[2].prepend(element("span", { class: "dot", style: { background: CATEGORIES[held.category] || GREY } }));
    return row;
  });
  if (course.others.bytes) {
    rows.push(cells("td", [size(course.others.bytes), percent(course.others.bytes / course.peak), `${grouped(course.others.tensors)} smaller`, "", "", ""]));
  }
  $("owners").replaceChildren(
    element("thead", {}, cells("th", ["bytes", "share", "held as", "made in", "by", "tensor"])), element("tbody", {}, ...rows));
}

// Operations: a table of which only the rows in sight exist.

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
  if (isCalls && data.roofline) {
    columns.push(
      number("bytes", "B", (i) => rows.bytes[i], 92), number("FLOP/B", "ratio", (i) => ratio(rows.work[i], rows.bytes[i]), 80),
      text("bound by", (i) => words[rows.binds[i]].replace("nothing", "–"), 88));
    if (!data.roofline.is_prediction) columns.push(number("efficiency", "share", (i) => ratio(rows.bound_seconds[i], rows.seconds[i]), 94));
  }
  if (isCalls) columns.push(text("tensors", (i) => words[rows.missing[i]] || words[rows.shapes[i]], 200));
  const shown = columns.filter((c) => c);
  if (narrow) shown.sort((a, b) => ["#", "MACs"].includes(a.label) - ["#", "MACs"].includes(b.label));
  return { columns: shown, ids, noun: isCalls ? "calls" : "operators", missing: (i) => words[rows.missing[i]], flops: (i) => rows.flops[i], seconds: (i) => rows.seconds[i] };
}

function modulesTable() {
  const depth = [];
  tiles.parent.forEach((parent, i) => depth.push(parent < 0 ? 0 : depth[parent] + 1));
  const inside = insideOf(tiles), ids = [];
  (function walk(i) { ids.push(i); inside[i].forEach(walk); })(0);
  const found = new Map(keys.map((metric) => [metric.key, totals(tiles, metric.key, ops.phase).all]));
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

function paint() {
  const grid = $("table"), body = grid.querySelector("tbody");
  const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 10);
  const last = Math.min(shown.ids.length, first + Math.ceil((grid.clientHeight || 560) / ROW) + 24);
  const gap = (rows) => (rows ? [element("tr", { class: "gap", "aria-hidden": "true" }, element("td", { colspan: shown.columns.length, style: { height: rows * ROW + "px" } }))] : []);
  const rows = shown.ids.slice(first, last).map((i, at) => {
    const tr = element("tr", { "aria-rowindex": first + at + 2, class: shown.missing(i) ? "uncounted" : null });
    tr.append(...shown.columns.map((column) => cell(column, i)));
    return tr;
  });
  body.replaceChildren(...gap(first), ...rows, ...gap(shown.ids.length - last));
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
}

// The controls, then all of it, the first chart first.

function controls() {
  choice($("where-controls"), "size by", keys.map((metric) => [metric.key, metric.label]), where.key, (key) => { where.key = key; draw("where"); });
  choice($("where-controls"), "as", [["icicle", "icicle"], ["treemap", "treemap"]], where.shape, (shape) => { where.shape = shape; draw("where"); });
  if (canFold) {
    choice($("where-controls"), "modules alike", [["1", "together"], ["", "each"]], where.alike ? "1" : "", (alike) => { where.alike = Boolean(alike); draw("where"); });
  }
  choice($("where-controls"), "phase", phaseChoices, where.phase, (phase) => { where.phase = phase; draw("where"); });
  if (data.roofline) choice($("speed-controls"), "phase", phaseChoices, speed.phase, (phase) => { speed.phase = phase; draw("roofline"); });
  if (course && fixed.length) {
    choice($("memory-controls"), "show", [["all", "everything"], ["", "what changes"]], memory.all ? "all" : "", (all) => { memory.all = Boolean(all); draw("course"); });
  }
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

const CHARTS = { where: drawWhere, roofline: drawSpeed, course: drawMemory };
const drawn = new Set();

function draw(id) {
  drawn.add(id);
  CHARTS[id]();
}

// Plotly is slow to start: everything that needs no chart is shown first, and a chart is drawn when it is about to be
// scrolled into view.
function start() {
  document.head.append(element("script", {}, $("plotly").textContent));
  const waiting = Object.keys(CHARTS).filter($);
  const left = () => waiting.filter((id) => !drawn.has(id));
  const observer = new IntersectionObserver((seen) => {
    for (const each of seen) if (each.isIntersecting && !drawn.has(each.target.id)) draw(each.target.id);
    document.documentElement.dataset.drawn ||= Math.round(performance.now());
  }, { rootMargin: "250px" });
  waiting.forEach((id) => observer.observe($(id)));
  addEventListener("beforeprint", () => left().forEach(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((id) => CHARTS[id]()));
}

controls();
arrange();
fillOwners();
document.documentElement.dataset.ready = Math.round(performance.now());
addEventListener("DOMContentLoaded", () => {
  if (document.hidden) setTimeout(start, 0);
  else requestAnimationFrame(() => setTimeout(start, 0));
});
})();
