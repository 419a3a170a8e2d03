// Reliability diagrams: one panel for each data set, with the histogram of confidence below it.
const FEW = 10;

function reliabilityPanel(title, curves, note) {
  const plot = frame({ height: 370, bottom: 108, x: [0, 1], y: [0, 1], xLabel: "", yLabel: "accuracy", xTicks: [], yTicks: [0, 0.2, 0.4, 0.6, 0.8, 1], yText: (v) => `${Math.round(100 * v)}%`, label: `Reliability diagram of ${title}; the numbers are in the tables below` });
  const { svg, X, Y } = plot;
  svg.append(shape("line", { class: "ideal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }));
  const base = 335, tall = 60;
  const most = Math.max(1, ...curves.flatMap(({ curve }) => curve.rows));
  curves.forEach(({ name, series, curve }, which) => {
    // A handful of rows is all right or all wrong by chance: shown, but not joined to the rest.
    const joined = curve.confidence.map((c, i) => [c, i]).filter(([, i]) => curve.rows[i] >= FEW);
    const upper = joined.map(([c, i]) => [X(c), Y(curve.high[i])]);
    const lower = joined.map(([c, i]) => [X(c), Y(curve.low[i])]).reverse();
    svg.append(shape("path", { class: `band s${series}`, d: joined.length ? `${path([...upper, ...lower])}Z` : "" }));
    svg.append(shape("path", { class: `line s${series}`, d: path(joined.map(([c, i]) => [X(c), Y(curve.accuracy[i])])) }));
    const wide = (X(1) - X(0)) / curve.bins, share = wide / curves.length;
    curve.confidence.forEach((c, i) => {
      const hint = `${name}: says ${percent(c)}, right ${percent(curve.accuracy[i])} (${percent(curve.low[i])} to ${percent(curve.high[i])}) of ${count(curve.rows[i])}`;
      const point = dot(X(c), Y(curve.accuracy[i]), series, hint);
      if (curve.rows[i] < FEW) point.classList.add("few");
      svg.append(point);
      const height = (tall * curve.rows[i]) / most;
      const bar = shape("rect", { class: `bar s${series}`, x: X(0) + wide * curve.bin[i] + share * which + 0.5, y: base - height, width: Math.max(1, share - 1), height });
      bar.append(shape("title", {}, hint));
      svg.append(bar);
    });
  });
  svg.append(shape("line", { class: "axis", x1: X(0), x2: X(1), y1: base, y2: base }));
  for (const tick of [0, 0.2, 0.4, 0.6, 0.8, 1]) svg.append(shape("text", { x: X(tick), y: base + 15, "text-anchor": "middle" }, `${Math.round(100 * tick)}%`));
  svg.append(shape("text", { x: (X(0) + X(1)) / 2, y: base + 31, "text-anchor": "middle" }, "confidence"));
  const keys = curves.map(({ name, series, curve }) => key(series, `${name}: ECE ${percent(curve.ece)}`));
  return element("figure", {}, element("h3", {}, isolated(title), note ? ` (${note})` : ""), svg, element("figcaption", {}, keys));
}

function reliabilityTable(title, name, curve) {
  const rows = curve.confidence.map((c, i) => [`${fixed(curve.bin[i] / curve.bins, 2)}–${fixed((curve.bin[i] + 1) / curve.bins, 2)}`, count(curve.rows[i]), percent(c), percent(curve.accuracy[i]), `${percent(curve.low[i])} – ${percent(curve.high[i])}`]);
  return table(`${title}, ${name}`, ["bin", "rows", "mean confidence", "right", "95 % interval"], rows);
}

const STAGES = { before: ["before temperature", 0], after: ["after temperature", 1] };

function showReliability() {
  const stage = byId("stage"), chosen = byId("class");
  const classes = [...new Set(data.sets.flatMap((set) => set.classes.map((c) => c.name)))];
  chosen.append(...classes.map((name, i) => option(i, `predicted as ${name}`)));
  const twice = data.sets.some((set) => set.reliability.before);
  byId("stage-choice").hidden = !twice;
  chosen.parentElement.hidden = !classes.length;
  const judging = data.sets.filter((set) => !set.aside);
  byId("aside-choice").hidden = !judging.length || judging.length === data.sets.length;
  const draw = () => {
    const panels = byId("reliability"), tables = byId("reliability-tables");
    panels.replaceChildren();
    tables.replaceChildren();
    for (const set of judging.length && !byId("aside").checked ? judging : data.sets) {
      const name = chosen.value === "" ? null : classes[Number(chosen.value)];
      const found = name === null ? set.reliability : (set.classes.find((c) => c.name === name) || { reliability: {} }).reliability;
      const curves = Object.entries(found)
        .filter(([s]) => !twice || stage.value === "both" || s === stage.value)
        .map(([s, curve]) => ({ name: twice ? STAGES[s][0] : "as supplied", series: STAGES[s][1], curve }));
      if (!curves.length) {
        panels.append(element("figure", {}, element("h3", {}, isolated(set.title)), element("p", { class: "keys" }, "No such prediction.")));
        continue;
      }
      const rows = curves[0].curve.rows.reduce((a, b) => a + b, 0);
      panels.append(reliabilityPanel(set.title, curves, `${count(rows)} rows`));
      for (const { name: shown, curve } of curves) tables.append(reliabilityTable(set.title, shown, curve));
    }
    settle(panels);
  };
  stage.addEventListener("change", draw);
  chosen.addEventListener("change", draw);
  byId("aside").addEventListener("change", draw);
  draw();
}
