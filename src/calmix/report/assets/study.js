// A study: every method's figures, by data set, against accuracy, cost, domain and seed.
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
const known = (rows, figure) => rows.filter((row) => row[figure] !== null);
// Beyond eight methods colours repeat, and marks are hollow.
const series = (method) => data.methods.indexOf(method) % 8;
const hollow = (method) => data.methods.indexOf(method) >= 8;
const shown = (method) => ({ name: method, series: series(method), hollow: hollow(method) });

// One line per method, a mark per seed.
function stripPanel(title, lines, name) {
  const xs = around(lines.flatMap((line) => line.values)), height = 60 + 26 * lines.length;
  const plot = frame({ height, left: 120, x: xs, y: [0, lines.length], xLabel: name, xTicks: ticks(...xs, 4), yTicks: [], xText: share, label: `${name} of every seed, ${title}; the numbers are in the tables below` });
  lines.forEach((line, i) => {
    const y = plot.Y(lines.length - i - 0.5), label = visible(line.name);
    plot.svg.append(shape("line", { class: "grid", x1: plot.X(xs[0]), x2: plot.X(xs[1]), y1: y, y2: y }));
    plot.svg.append(shape("text", { x: 112, y: y + 4, "text-anchor": "end" }, label.length > 17 ? `${label.slice(0, 16)}…` : label, shape("title", {}, label)));
    for (const v of line.values) plot.svg.append(mark(plot.X(v), y, line, `${line.name}: ${percent(v)}`, 0.75));
    plot.svg.append(mark(plot.X(mean(line.values)), y, line, `${line.name}, mean: ${percent(mean(line.values))}`));
  });
  return plot.svg;
}

function showStudy() {
  const kind = byId("study-diagram"), stage = byId("study-stage"), model = byId("study-model"), setting = byId("study-setting");
  const distinct = (name) => [...new Set(data.rows.map((row) => row[name]))];
  distinct("model").forEach((name) => model.append(option(name, name.split("/").at(-1))));
  distinct("setting").forEach((name) => setting.append(option(name, name || "as it is")));
  model.parentElement.hidden = model.options.length < 2;
  setting.parentElement.hidden = setting.options.length < 2;
  const draw = () => {
    const accuracy = kind.value === "accuracy-seeds", scaled = stage.value === "after" && !accuracy;
    stage.parentElement.hidden = accuracy;
    const rows = data.rows.filter((row) => row.model === model.value && row.setting === setting.value && row.scaled === scaled);
    const panels = byId("study"), tables = byId("study-tables");
    panels.replaceChildren();
    tables.replaceChildren();
    const add = (title, svg, heads, lines) => {
      panels.append(element("figure", {}, element("h3", {}, isolated(title)), svg));
      tables.append(table(title, ["method", ...heads], lines));
    };
    const byMethod = (some) => data.methods.map((method) => [method, some.filter((row) => row.method === method)]).filter(([, found]) => found.length);
    const places = [...new Map(rows.map((row) => [`${row.task}\u0000${row.data}`, row])).values()];
    if (kind.value === "domain") {
      for (const task of [...new Set(rows.map((row) => row.task))]) {
        const inside = known(rows.filter((row) => row.task === task && row.data === "test"), "ece");
        for (const far of [...new Set(rows.filter((row) => row.task === task && row.domain === "out").map((row) => row.data))]) {
          const outside = known(rows.filter((row) => row.task === task && row.data === far), "ece");
          const points = byMethod(inside).map(([method, found]) => {
            const seeds = found.map((row) => [row.ece, outside.find((other) => other.method === method && other.seed === row.seed)]).filter(([, other]) => other).map(([x, other]) => [x, other.ece]);
            return seeds.length ? { ...shown(method), seeds, x: mean(seeds.map((s) => s[0])), y: mean(seeds.map((s) => s[1])) } : null;
          }).filter(Boolean);
          if (points.length) add(`${task} → ${far.replace(/^ood-/, "")}`, cloudPanel(task, points, { x: "ECE in domain", y: "ECE out of domain", diagonal: true }), ["ECE in domain", "ECE out of domain"], points.map((p) => [p.name, percent(p.x, 2), percent(p.y, 2)]));
        }
      }
      if (!panels.children.length) panels.append(element("p", { class: "keys" }, "No task here has data out of domain."));
    } else for (const place of places) {
      const title = place.data === "test" ? place.task : `${place.task} → ${place.data.replace(/^ood-/, "")}`;
      const here = rows.filter((row) => row.task === place.task && row.data === place.data);
      if (kind.value.endsWith("seeds")) {
        const figure = accuracy ? "accuracy" : "ece", name = accuracy ? "accuracy" : "ECE";
        const lines = byMethod(known(here, figure)).map(([method, found]) => ({ ...shown(method), values: found.map((row) => row[figure]) }));
        if (lines.length) add(title, stripPanel(title, lines, name), ["mean", "lowest", "highest", "seeds"], lines.map(({ name: method, values }) => [method, percent(mean(values), 2), percent(Math.min(...values), 2), percent(Math.max(...values), 2), values.length]));
      } else {
        const x = kind.value === "accuracy" ? "accuracy" : "seconds", plainX = x === "seconds";
        const points = byMethod(known(known(here, "ece"), x)).map(([method, found]) => ({ ...shown(method), x: mean(found.map((row) => row[x])), y: mean(found.map((row) => row.ece)), seeds: found.map((row) => [row[x], row.ece]) }));
        if (points.length) add(title, cloudPanel(title, points, { x: plainX ? "training seconds" : "accuracy", y: "ECE", plainX }), [plainX ? "training seconds" : "accuracy", "ECE"], points.map((p) => [p.name, plainX ? fixed(p.x, 1) : percent(p.x, 2), percent(p.y, 2)]));
      }
    }
  };
  byId("study-legend").append(...data.methods.map((method) => element("li", {}, element("span", { class: `swatch s${series(method)}${hollow(method) ? " hollow" : ""}` }), isolated(method), method === data.baseline ? " (the baseline)" : "")));
  for (const one of [kind, stage, model, setting]) one.addEventListener("change", draw);
  draw();
}
