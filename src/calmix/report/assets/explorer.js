// The data map: colours, filters, hovering, lasso, and the list of samples to read and mark.
const REGIONS = ["easy", "ambiguous", "hard"];
const REGION_SERIES = [1, 2, 0];
const CLASS_SERIES = [4, 2, 1, 3, 5, 6, 0, 7];
const PAGE = 25;

async function unpackSamples(packed) {
  const names = Object.keys(packed.columns);
  const columns = await Promise.all(names.map((name) => unpack(packed.columns[name])));
  const found = { n: packed.n, classes: packed.classes, choices: packed.choices };
  names.forEach((name, i) => { found[name] = columns[i]; });
  [found.id, found.text, found.suspects] = await Promise.all([unpack(packed.id), packed.text ? unpack(packed.text) : null, unpack(packed.suspects)]);
  found.history = packed.history ? { epochs: packed.history.epochs, codes: await unpack(packed.history.codes) } : null;
  return found;
}

const parts = (samples, row) => (samples.text === null ? [samples.id[row]] : [].concat(samples.text[row]));

function textOf(samples, row) {
  const [first, ...more] = parts(samples, row);
  const shown = [isolated(first, "p")];
  shown[0].className = "text";
  if (samples.choices) shown.push(...more.map((choice, k) => element("p", { class: "facts" }, k === samples.label[row] ? "● " : "○ ", isolated(choice))));
  else shown.push(...more.map((text) => { const second = isolated(text, "p"); second.className = "text"; return second; }));
  return shown;
}

const className = (samples, code) => samples.classes[code] ?? "none";
const named = (samples, code, kind) => { const made = element("b", { class: kind }); made.append(isolated(className(samples, code))); return made; };

// What each epoch said: [epoch, probability of the label, whether right], of the epochs that saw the sample.
function historyOf(samples, row) {
  if (samples.history === null) return [];
  const { epochs, codes } = samples.history, from = row * epochs.length;
  return epochs.map((epoch, k) => [epoch, codes[from + k]]).filter(([, code]) => code !== 255).map(([epoch, code]) => [epoch, code % 128, code >= 128]);
}

// The history as a line from 0 to 100 %: filled where right, hollow where wrong.
function sparkline(samples, row) {
  const history = historyOf(samples, row);
  if (!history.length) return [];
  const epochs = samples.history.epochs, first = epochs[0], span = epochs.at(-1) - first || 1;
  const width = Math.max(60, Math.min(220, 22 * epochs.length)), height = 34;
  const X = (epoch) => (epochs.length === 1 ? width / 2 : 6 + ((epoch - first) / span) * (width - 12)), Y = (share) => height - 5 - (share / 100) * (height - 10);
  const told = history.map(([epoch, share, right]) => `epoch ${epoch}: ${share} %, ${right ? "right" : "wrong"}`);
  const svg = shape("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Probability of the label: ${told.join("; ")}` });
  for (const edge of [0, 100]) svg.append(shape("line", { class: "grid", x1: 0, x2: width, y1: Y(edge), y2: Y(edge) }));
  svg.append(shape("path", { class: "line", d: path(history.map(([epoch, share]) => [X(epoch), Y(share)])) }));
  const size = history.length > 24 ? 1.8 : 3.2;
  history.forEach(([epoch, share, right], k) => svg.append(shape("circle", { class: right ? "hit" : "miss", cx: X(epoch), cy: Y(share), r: size }, shape("title", {}, told[k]))));
  const [from, to] = [history[0][1], history.at(-1)[1]];
  return [element("p", { class: "facts history" }, svg, element("span", {}, history.length === 1 ? `label at ${to} %` : `label at ${from} % → ${to} %`))];
}

function factsOf(samples, row) {
  const times = samples.observations[row], right = Math.round(samples.correctness[row] * times);
  const forgotten = samples.forgetting[row];
  const history = [`right in ${right} of ${times} epochs`];
  if (forgotten) history.push(`forgotten ${forgotten === 1 ? "once" : `${forgotten} times`}`);
  history.push(`loss ${fixed(samples.loss[row], 2)} on average, ${fixed(samples.last_loss[row], 2)} at the end`);
  const suspect = samples.suspect[row] === 1;
  return [
    element("p", { class: "facts" }, "label ", named(samples, samples.label[row]),
      samples.rival[row] === 65535 ? "" : [suspect ? " · looks like " : " · else ", named(samples, samples.rival[row], suspect ? "suggested" : ""), ` (suspicion score ${fixed(samples.score[row], 2)})`],
      " · final prediction: ", named(samples, samples.last[row])),
    element("p", { class: "facts" }, `confidence ${fixed(samples.confidence[row], 2)} · variability ${fixed(samples.variability[row], 2)} · margin ${fixed(samples.aum[row], 2)} · ${REGIONS[samples.region[row]] ?? "no region"}`),
    ...sparkline(samples, row),
    element("p", { class: "facts" }, history.join(" · ")),
  ];
}

async function showExplorer() {
  const samples = await unpackSamples(data.samples), n = samples.n;
  samples.suspect = new Uint8Array(n);
  for (const row of samples.suspects) samples.suspect[row] = 1;
  const decisions = new Decisions(data.key, samples, data.columns);
  const canvas = byId("points"), overlay = byId("overlay"), hover = byId("hover");
  const cloud = new Cloud(canvas, samples.variability, samples.confidence, data.samples.axes);
  const style = new Uint8Array(n), passes = new Uint8Array(n).fill(1);
  let palette = [], shown = n, selected = [], tab = "suspects", page = 0, list = [], lasso = null, lowered = null, spot = -1;
  const wanted = (row) => passes[row] === 1;

  // Colours come from the style sheet, so that light and dark are told in one place.
  const colour = (name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  };

  const common = Array.from(samples.classes.keys()).map((k) => [k, 0]);
  for (const label of samples.label) if (label !== 65535) common[label][1]++;
  const ranked = [...common].sort((a, b) => b[1] - a[1]).filter(([, rows]) => rows);

  function paint() {
    const by = byId("colour").value, legend = [];
    let code, series;
    if (by === "region") {
      series = REGION_SERIES;
      code = (row) => (samples.region[row] < 3 ? samples.region[row] : 2);
      REGIONS.forEach((name, k) => legend.push([series[k], name, (row) => samples.region[row] === k]));
    } else if (by === "correctness") {
      series = [3, 2, 1];
      code = (row) => (samples.correctness[row] > 0.999 ? 2 : samples.correctness[row] > 0.001 ? 1 : 0);
      ["never right", "right at times", "always right"].forEach((name, k) => legend.push([series[k], name, (row) => code(row) === k]));
    } else {
      const most = ranked.length > 8 ? 7 : 8, place = new Map(ranked.slice(0, most).map(([k], i) => [k, i]));
      series = CLASS_SERIES;
      code = (row) => place.get(samples.label[row]) ?? 7;
      ranked.slice(0, most).forEach(([k], i) => legend.push([series[i], className(samples, k), (row) => samples.label[row] === k]));
      if (ranked.length > 8) legend.push([series[7], "other labels", (row) => !place.has(samples.label[row])]);
    }
    palette = series.map((s) => colour(`--c${s}`));
    const counts = legend.map(() => 0);
    for (let row = 0; row < n; row++) {
      style[row] = wanted(row) ? code(row) : 255;
      if (style[row] !== 255) counts[legend.findIndex(([, , has]) => has(row))]++;
    }
    byId("legend").replaceChildren(
      ...legend.map(([s, name], i) => element("li", {}, element("span", { class: `swatch s${s}` }), isolated(name), ` ${count(counts[i] || 0)}`)),
      element("li", {}, element("span", { class: "swatch ring" }), `label looks wrong ${count(samples.suspects.reduce((sum, row) => sum + passes[row], 0))}`));
    draw();
  }

  let waiting = 0, settling = 0, paper = colour("--card"), red = colour("--c3");
  function draw(fast = false) {
    clearTimeout(settling);
    if (fast) settling = setTimeout(() => draw(), 120);
    if (waiting) return;
    waiting = requestAnimationFrame(() => { waiting = 0; drawNow(fast && n > 20000); });
  }

  function drawNow(fast) {
    cloud.draw({ style, palette, paper, ringed: samples.suspects, ring: red, shown, fast });
    axes();
  }

  function axes() {
    const { view } = cloud, made = [];
    for (const tick of ticks(view.x0, view.x1, Math.max(2, Math.floor(cloud.width / 90)))) if (tick >= 0) made.push(shape("text", { x: cloud.across(tick), y: cloud.height - 22, "text-anchor": "middle" }, String(tick)));
    for (const tick of ticks(view.y0, view.y1, 6)) if (tick >= 0 && tick <= 1) {
      const y = cloud.down(tick);
      if (y > 8 && y < cloud.height - 30) made.push(shape("text", { x: 48, y: y + 4, "text-anchor": "end" }, String(tick)));
    }
    made.push(shape("text", { x: cloud.width / 2, y: cloud.height - 6, "text-anchor": "middle" }, "variability →"));
    made.push(shape("text", { x: 12, y: cloud.height / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${cloud.height / 2})` }, "confidence →"));
    if (lasso) made.push(shape("polygon", { class: "lasso", points: lasso.map((at) => at.join(",")).join(" ") }));
    if (spot >= 0) made.push(shape("circle", { class: "spot", cx: cloud.across(samples.variability[spot]), cy: cloud.down(samples.confidence[spot]), r: 7 }));
    // As the canvas: where a printer stretches one, it stretches the other.
    overlay.setAttribute("viewBox", `0 0 ${cloud.width} ${cloud.height}`);
    overlay.replaceChildren(...made);
  }

  // Filters.
  function filter() {
    const label = byId("by-label").value, region = byId("by-region").value;
    const words = byId("by-words").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !lowered) lowered = Array.from({ length: n }, (_, row) => `${samples.id[row]} ${parts(samples, row).join(" ")}`.toLowerCase());
    shown = 0;
    for (let row = 0; row < n; row++) {
      passes[row] = (label === "" || samples.label[row] === Number(label)) && (region === "" || samples.region[row] === Number(region)) && words.every((word) => lowered[row].includes(word)) ? 1 : 0;
      shown += passes[row];
    }
    page = 0;
    paint();
    refresh();
  }

  // The list.
  const SORTS = { score: (row) => -(samples.score[row] || 0), confidence: (row) => samples.confidence[row], variability: (row) => -samples.variability[row], row: (row) => row };
  function rowsOf(which) {
    if (which === "suspects") return Array.from(samples.suspects).filter(wanted);
    if (which === "selected") return selected.filter(wanted);
    if (which === "marked") return [...decisions.made.keys()];
    const { view } = cloud;
    return cloud.inside(Math.max(0, view.x0), view.x1, Math.max(0, view.y0), view.y1, wanted);
  }

  function refresh() {
    list = rowsOf(tab);
    const by = byId("sort").value;
    // Suspects come sorted by suspicion; ties stay as they are.
    if (!(tab === "suspects" && by === "score")) list.sort((a, b) => SORTS[by](a) - SORTS[by](b) || a - b);
    for (const which of ["suspects", "selected", "marked"]) byId(`n-${which}`).textContent = count(which === tab ? list.length : rowsOf(which).length);
    byId("n-view").textContent = tab === "view" ? count(list.length) : "";
    page = Math.min(page, Math.max(0, Math.ceil(list.length / PAGE) - 1));
    const from = page * PAGE, rows = list.slice(from, from + PAGE);
    byId("where").textContent = list.length ? `${count(from + 1)}–${count(from + rows.length)} of ${count(list.length)}` : "0";
    byId("back").disabled = page === 0;
    byId("forth").disabled = from + PAGE >= list.length;
    const filtered = shown < n;
    const empty = { suspects: filtered && samples.suspects.length ? `None of the ${count(samples.suspects.length)} suspects passes the filters above.` : data.samples.withheld ? `No label is called wrong: ${data.samples.withheld}.` : "No label looks wrong.", selected: filtered && selected.length ? "No selected sample passes the filters above." : "Draw around points with the lasso to read them here.", view: filtered ? "Nothing in view passes the filters above." : "Nothing is in view.", marked: "Nothing is marked yet." };
    byId("list").replaceChildren(...(rows.length ? rows.map(item) : [element("li", { class: "empty" }, empty[tab])]));
    byId("panel").scrollTop = 0;
    tally();
  }

  function tally() {
    const counts = { keep: 0, relabel: 0, drop: 0 };
    for (const { action } of decisions.made.values()) counts[action]++;
    const all = decisions.made.size;
    byId("decided").textContent = all ? `${count(all)} marked: ${count(counts.keep)} keep, ${count(counts.relabel)} relabel, ${count(counts.drop)} drop.` : "Nothing is marked yet.";
    byId("n-marked").textContent = count(all);
    byId("download").disabled = byId("forget").disabled = !all;
  }

  function item(row) {
    const made = decisions.made.get(row), group = `mark-${row}`;
    const to = element("select", { "aria-label": "new label" });
    // A row has its own number of choices.
    const there = samples.choices && samples.text !== null ? parts(samples, row).length - 1 : samples.classes.length;
    samples.classes.slice(0, there).forEach((name, k) => { if (k !== samples.label[row]) to.append(option(k, name)); });
    to.value = String(made && made.label !== null ? made.label : samples.rival[row]);
    if (to.selectedIndex < 0) to.selectedIndex = 0;
    const radios = ["keep", "relabel", "drop"].map((action) => {
      const radio = element("input", { type: "radio", name: group, value: action });
      radio.checked = Boolean(made && made.action === action);
      let was = radio.checked;
      const mark = () => { decisions.set(row, action, Number(to.value)); tally(); };
      radio.addEventListener("change", mark);
      // A second click takes the mark back.
      radio.addEventListener("pointerdown", () => { was = radio.checked; });
      radio.addEventListener("click", () => { if (was) { radio.checked = was = false; decisions.set(row, null); tally(); } });
      return element("label", {}, radio, action);
    });
    to.addEventListener("change", () => { radios[1].firstChild.checked = true; decisions.set(row, "relabel", Number(to.value)); tally(); });
    if (!to.options.length) radios[1].hidden = to.hidden = true;
    const marks = element("fieldset", {}, element("legend", { class: "sr" }, `What to do with ${visible(samples.id[row])}`), radios[0], radios[2], radios[1], to);
    const made_ = element("li", { "data-row": row }, ...textOf(samples, row), ...factsOf(samples, row), marks);
    made_.addEventListener("pointerenter", () => { spot = row; axes(); });
    made_.addEventListener("pointerleave", () => { spot = -1; axes(); });
    return made_;
  }

  function choose(which, focus = false) {
    tab = which;
    page = 0;
    for (const name of ["suspects", "selected", "view", "marked"]) {
      const button = byId(`tab-${name}`);
      button.setAttribute("aria-selected", String(name === which));
      button.tabIndex = name === which ? 0 : -1;
      if (focus && name === which) button.focus();
    }
    byId("panel").setAttribute("aria-labelledby", `tab-${which}`);
    refresh();
  }

  // The pointer: hovering shows a sample, dragging moves, the lasso selects.
  const pointers = new Map();
  let pinch = 0;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const lassoing = () => byId("lasso").getAttribute("aria-pressed") === "true";

  function show(row, px, py) {
    spot = row;
    hover.hidden = row < 0;
    axes();
    if (row < 0) return;
    hover.replaceChildren(...textOf(samples, row), ...factsOf(samples, row));
    const left = px + 16 + hover.offsetWidth > cloud.width ? Math.max(4, px - hover.offsetWidth - 16) : px + 16;
    hover.style.left = `${left}px`;
    hover.style.top = `${Math.max(4, Math.min(py - 20, cloud.height - hover.offsetHeight - 4))}px`;
  }

  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, at(event));
    canvas.setPointerCapture(event.pointerId);
    if (pointers.size === 1 && (lassoing() || event.shiftKey)) lasso = [at(event)];
    else { lasso = null; canvas.classList.add("moving"); }
    show(-1);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = at(event), before = pointers.get(event.pointerId);
    if (!before) { show(cloud.nearest(px, py, wanted), px, py); return; }
    pointers.set(event.pointerId, [px, py]);
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()], apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (pinch) cloud.zoom(pinch / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      pinch = apart;
      draw(true);
    } else if (lasso) {
      lasso.push([px, py]);
      axes();
    } else {
      cloud.move(px - before[0], py - before[1]);
      draw(true);
    }
  });
  const release = (event) => {
    const [px, py] = at(event), first = pointers.get(event.pointerId);
    pointers.delete(event.pointerId);
    pinch = 0;
    canvas.classList.remove("moving");
    if (lasso) {
      if (lasso.length > 2) { selected = cloud.within(lasso, wanted); choose("selected"); }
      lasso = null;
    } else if (tab === "view") refresh();
    if (first && event.pointerType === "touch") show(cloud.nearest(px, py, wanted, 18), px, py);
    draw();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", (event) => { pointers.delete(event.pointerId); lasso = null; pinch = 0; canvas.classList.remove("moving"); draw(); });
  canvas.addEventListener("pointerleave", () => { if (!pointers.size) show(-1); });
  canvas.addEventListener("wheel", (event) => {
    // Without a key the wheel scrolls the page, as everywhere.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    cloud.zoom(1.0015 ** event.deltaY, ...at(event));
    draw(true);
    if (tab === "view") refresh();
  }, { passive: false });

  const act = (change) => { change(); show(-1); draw(); if (tab === "view") refresh(); };
  const all = () => { cloud.view = { ...cloud.whole }; };
  byId("zoom-in").addEventListener("click", () => act(() => cloud.zoom(0.6)));
  byId("zoom-out").addEventListener("click", () => act(() => cloud.zoom(1 / 0.6)));
  byId("zoom-all").addEventListener("click", () => act(all));
  byId("lasso").addEventListener("click", () => {
    byId("lasso").setAttribute("aria-pressed", String(!lassoing()));
    canvas.classList.toggle("lassoing", lassoing());
  });
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => cloud.move(60, 0), ArrowRight: () => cloud.move(-60, 0), ArrowUp: () => cloud.move(0, 60), ArrowDown: () => cloud.move(0, -60), "+": () => cloud.zoom(0.7), "=": () => cloud.zoom(0.7), "-": () => cloud.zoom(1 / 0.7), 0: all };
    if (event.key === "Enter") { choose("view", true); return; }
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act(keys[event.key]);
  });

  const tabs = ["suspects", "selected", "view", "marked"];
  for (const name of tabs) {
    byId(`tab-${name}`).addEventListener("click", () => choose(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) choose(tabs[(tabs.indexOf(name) + step + tabs.length) % tabs.length], true);
    });
  }
  byId("back").addEventListener("click", () => { page--; refresh(); });
  byId("forth").addEventListener("click", () => { page++; refresh(); });
  byId("sort").addEventListener("change", () => { page = 0; refresh(); });
  byId("colour").addEventListener("change", paint);
  byId("by-label").append(...ranked.map(([k, rows]) => option(k, `${className(samples, k)} (${count(rows)})`)));
  byId("by-label").addEventListener("change", filter);
  byId("by-region").addEventListener("change", filter);
  let typing = 0;
  byId("by-words").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filter, 150); });
  byId("clear").addEventListener("click", () => { byId("by-label").value = byId("by-region").value = byId("by-words").value = ""; selected = []; filter(); });
  byId("download").addEventListener("click", () => download("decisions.csv", decisions.csv()));
  byId("forget").addEventListener("click", () => { decisions.clear(); refresh(); });
  const renew = () => { paper = colour("--card"); red = colour("--c3"); paint(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renew);
  // At once: a printer does not wait for the next frame, and a canvas of another size is empty.
  new ResizeObserver(() => { cloud.resize(); drawNow(false); }).observe(canvas);
  paint();
  refresh();
}
