// Risk and coverage: what is gained by answering only when sure.
async function showSelective() {
  const sets = await Promise.all(data.sets.map(async (set) => {
    const packed = set.selective.after;
    const confidence = await unpack(packed.confidence), hit = await unpack(packed.hit);
    const right = new Uint32Array(hit.length + 1);
    for (let i = 0; i < hit.length; i++) right[i + 1] = right[i] + hit[i];
    return { ...set, confidence, right };
  }));
  const chosen = byId("selective-set"), slider = byId("threshold");
  chosen.append(...sets.map((set, i) => option(i, set.title)));
  const guarantee = data.guarantee;
  if (guarantee && guarantee.threshold) slider.value = guarantee.threshold;
  let marker;
  const answered = (set, threshold) => {
    // Confidence falls: the first row below the threshold.
    let low = 0, high = set.confidence.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (set.confidence[middle] >= threshold) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  // Where 0.8 is more than any row has, half of them are answered to begin with.
  const first = sets[0];
  if (!(guarantee && guarantee.threshold) && !answered(first, Number(slider.value))) slider.value = first.confidence[first.rows >> 1];
  const draw = () => {
    const set = sets[Number(chosen.value)], n = set.rows;
    const risk = (rows) => (rows ? 1 - set.right[rows] / rows : 0);
    const spots = [...new Set(Array.from({ length: Math.min(n, 300) }, (_, i) => Math.max(1, Math.round(((i + 1) * n) / Math.min(n, 300)))))];
    const top = Math.max(0.05, ...spots.filter((rows) => rows >= Math.min(n, 20)).map(risk)) * 1.1;
    const plot = frame({ width: 460, height: 280, x: [0, 1], y: [0, top], xLabel: "coverage: share answered", yLabel: "wrong among them", xTicks: [0, 0.25, 0.5, 0.75, 1], yTicks: ticks(0, top, 5), xText: (v) => `${100 * v}%`, yText: share, label: "Risk and coverage; the numbers are in the table below" });
    plot.svg.append(shape("path", { class: "line s1", d: path(spots.map((rows) => [plot.X(rows / n), plot.Y(Math.min(top, risk(rows)))])) }));
    marker = shape("g", {}, shape("line", { class: "mark", y1: plot.ceiling, y2: plot.floor }), shape("circle", { class: "dot s3", r: 6 }));
    plot.svg.append(marker);
    byId("risk").replaceChildren(plot.svg);
    const levels = [0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99];
    byId("risk-table").replaceChildren(table(set.title, ["confidence at least", "answered", "right among them", "wrong among them", "to a human"], levels.map((level) => {
      const rows = answered(set, level);
      return [fixed(level, 2), `${count(rows)} (${percent(rows / n)})`, rows ? percent(set.right[rows] / rows) : "–", count(rows - set.right[rows]), count(n - rows)];
    })));
    move(plot, set, risk);
    slider.oninput = () => move(plot, set, risk);
  };
  const move = (plot, set, risk) => {
    const threshold = Number(slider.value), n = set.rows, rows = answered(set, threshold), right = set.right[rows];
    const [low, high] = wilson(right, rows);
    byId("threshold-shown").textContent = fixed(threshold, 3);
    slider.setAttribute("aria-valuetext", `${fixed(threshold, 3)}: ${percent(rows / n)} answered`);
    byId("coverage").textContent = percent(rows / n);
    byId("answered").textContent = `${count(rows)} of ${count(n)} rows`;
    byId("accuracy").textContent = rows ? percent(right / rows) : "–";
    byId("accuracy-interval").textContent = rows ? `${(100 * low).toFixed(1)}–${(100 * high).toFixed(1)}` : "";
    byId("errors").textContent = rows ? `${count(rows - right)} answered wrongly` : "nothing is answered";
    byId("to-human").textContent = count(n - rows);
    byId("of-all").textContent = `${percent((n - rows) / n)} of the rows`;
    marker.children[0].setAttribute("x1", plot.X(rows / n));
    marker.children[0].setAttribute("x2", plot.X(rows / n));
    marker.children[1].setAttribute("cx", plot.X(rows / n));
    marker.children[1].setAttribute("cy", plot.Y(Math.min(1, risk(rows))));
  };
  // All the digits that were asked for: 99.9 % is not 100 %.
  const level = (value) => `${Number((100 * value).toPrecision(4))} %`;
  if (guarantee) {
    byId("guarantee").textContent = guarantee.threshold === null
      ? `An accuracy of ${level(guarantee.accuracy)} cannot be promised: the rows kept for it are too few, or too many of them were predicted wrongly.`
      : `Accepting confidence ≥ ${fixed(guarantee.threshold)} keeps accuracy ≥ ${level(guarantee.accuracy)} (with ${percent(1 - guarantee.error, 0)} confidence) on data like the rows kept for that.`;
    const { constant, possible } = data.promises || {};
    if (constant && constant.accuracy >= guarantee.accuracy)
      byId("guarantee").textContent += ` That says nothing: always answering “${constant.label}” keeps it, too (${percent(constant.accuracy, 0)} of these rows).`;
    if (possible)
      byId("guarantee").textContent += ` What can be promised from these rows: ${level(possible.accuracy)} on ${percent(possible.coverage, 0)} of the texts.`;
  }
  chosen.addEventListener("change", draw);
  draw();
}
