// Charts as SVG: a frame with axes, and lines in it.
function frame({ width = 360, height = 300, left = 54, right = 10, top = 8, bottom = 40, x, y, xLabel, yLabel, xTicks, yTicks, xText = String, yText = String, label }) {
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const X = (v) => left + ((v - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const Y = (v) => height - bottom - ((v - y[0]) / (y[1] - y[0] || 1)) * (height - top - bottom);
  for (const tick of yTicks) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }));
    svg.append(shape("text", { x: left - 6, y: Y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of xTicks) svg.append(shape("text", { x: X(tick), y: height - bottom + 16, "text-anchor": "middle" }, xText(tick)));
  svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  if (yLabel) svg.append(shape("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, yLabel));
  return { svg, X, Y, floor: height - bottom, ceiling: top };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// About `most` round numbers from low to high.
function ticks(low, high, most = 5) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

const key = (series, text) => element("span", {}, element("span", { class: `swatch s${series}` }), text);

function dot(x, y, series, hint) {
  const square = series % 2 === 0;
  const made = square
    ? shape("rect", { class: `dot s${series}`, x: x - 4, y: y - 4, width: 8, height: 8 })
    : shape("circle", { class: `dot s${series}`, cx: x, cy: y, r: 4.5 });
  made.append(shape("title", {}, hint));
  return made;
}

// A mark of something with a series, hollow or filled; below full size it is pale.
function mark(x, y, { series, hollow }, hint, size = 1) {
  const made = dot(x, y, series, hint);
  if (hollow) made.classList.add("hollow");
  if (size < 1) { made.classList.add("faint"); made.setAttribute("transform", `translate(${x * (1 - size)} ${y * (1 - size)}) scale(${size})`); }
  return made;
}

function around(values, least = 0.01) {
  const low = Math.min(...values), high = Math.max(...values), room = Math.max(least, (high - low) * 0.15);
  return [Math.max(0, low - room), high + room];
}

const share = (v) => `${Math.round(1000 * v) / 10}%`;

// Points [{name, series, hollow, x, y, seeds: [[x, y]]}] in a frame.
function cloudPanel(title, points, { x, y, plainX = false, diagonal = false }) {
  const all = points.flatMap((p) => [[p.x, p.y], ...p.seeds]);
  const ys = [0, Math.max(0.02, ...all.map((p) => p[1])) * 1.1];
  const xs = diagonal ? [0, Math.max(0.02, ...all.map((p) => p[0])) * 1.1] : around(all.map((p) => p[0]), plainX ? 0.5 : 0.01);
  const plot = frame({ height: 290, x: xs, y: ys, xLabel: x, yLabel: y, xTicks: ticks(...xs, 4), yTicks: ticks(...ys, 5), xText: plainX ? String : share, yText: share, label: `${y} against ${x}, ${title}; the numbers are in the tables below` });
  if (diagonal) { const end = Math.min(xs[1], ys[1]); plot.svg.append(shape("line", { class: "ideal", x1: plot.X(0), y1: plot.Y(0), x2: plot.X(end), y2: plot.Y(end) })); }
  const text = plainX ? (v) => fixed(v, 1) : percent;
  for (const p of points) for (const [sx, sy] of p.seeds) plot.svg.append(mark(plot.X(sx), plot.Y(sy), p, `${p.name}, one seed: ${x} ${text(sx)}, ${y} ${percent(sy)}`, 0.7));
  for (const p of points) plot.svg.append(mark(plot.X(p.x), plot.Y(p.y), p, `${p.name}: ${x} ${text(p.x)}, ${y} ${percent(p.y)}`));
  return plot.svg;
}

// A single panel leaves half of the page empty: its tables, unfolded, stand beside it.
function settle(panels) {
  const charts = panels.parentElement, single = panels.children.length === 1;
  if (single !== charts.classList.contains("single")) charts.querySelector("details").open = single;
  charts.classList.toggle("single", single);
}

function drawCurves(into, tables, curves) {
  const { epochs, panels, best } = curves;
  // Epoch 0 is before fine-tuning: another model, whose head has its full size, and so a point of its own.
  const named = (epoch) => (epoch === 0 ? "before fine-tuning" : `epoch ${epoch}`);
  for (const [title, series] of Object.entries(panels)) {
    const values = Object.values(series).flat().filter((v) => v !== null);
    const isShare = title !== "loss";
    const high = Math.max(...values) * 1.05 || 1, low = title === "accuracy" ? Math.max(0, Math.min(...values) - 0.05) : 0;
    const shownEpochs = epochs.length > 8 ? ticks(epochs[0], epochs.at(-1), 6).filter(Number.isInteger) : epochs;
    const plot = frame({ height: 220, x: [epochs[0] - 0.3, epochs.at(-1) + 0.3], y: [low, high], xLabel: "epoch", xTicks: shownEpochs, xText: (v) => (v === 0 ? "before" : String(v)), yTicks: ticks(low, high, 4), yText: isShare ? share : String, label: `${title} by epoch; the numbers are in the table below` });
    if (best !== null) plot.svg.append(shape("line", { class: "mark", x1: plot.X(best), x2: plot.X(best), y1: plot.ceiling, y2: plot.floor }, shape("title", {}, `kept: ${named(best)}`)));
    const keys = Object.entries(series).map(([name, ys], s) => {
      const points = ys.map((v, i) => (v === null ? null : [plot.X(epochs[i]), plot.Y(v), epochs[i], v])).filter(Boolean);
      plot.svg.append(shape("path", { class: `line s${s}`, d: path(points.filter(([, , epoch]) => epoch > 0)) }));
      for (const [x, y, epoch, v] of points) plot.svg.append(dot(x, y, s, `${name}, ${named(epoch)}: ${isShare ? percent(v) : fixed(v)}`));
      return key(s, name);
    });
    if (best !== null) keys.push(element("span", {}, best === 0 ? "dotted: the model from before fine-tuning was kept" : `dotted: epoch ${best} was kept`));
    into.append(element("figure", {}, element("h3", {}, title), plot.svg, element("figcaption", {}, keys)));
  }
  const names = Object.values(panels).flatMap((series) => Object.keys(series));
  const columns = Object.values(panels).flatMap((series) => Object.values(series));
  tables.append(table("By epoch", ["epoch", ...names], epochs.map((epoch, i) => [epoch === 0 ? "before fine-tuning" : epoch, ...columns.map((ys) => fixed(ys[i], 4))])));
  settle(into);
}
