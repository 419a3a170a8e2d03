// Several runs in one diagram for each data set.
function riskPanel(title, curves) {
  const top = Math.max(0.05, ...curves.flatMap(({ risk }) => risk.risk.filter((_, i) => risk.coverage[i] > 0.1))) * 1.1;
  const plot = frame({ height: 300, x: [0, 1], y: [0, top], xLabel: "coverage: share answered", yLabel: "wrong among them", xTicks: [0, 0.25, 0.5, 0.75, 1], yTicks: ticks(0, top, 5), xText: (v) => `${100 * v}%`, yText: share, label: `Risk and coverage of ${title}; the numbers are in the tables below` });
  for (const { risk, series } of curves) plot.svg.append(shape("path", { class: `line s${series}`, d: path(risk.coverage.map((c, i) => [plot.X(c), plot.Y(Math.min(top, risk.risk[i]))])) }));
  return plot.svg;
}

function showComparison() {
  const draw = () => {
    const kind = byId("diagram").value, stage = byId("stage").value, panels = byId("comparison"), tables = byId("comparison-tables");
    byId("stage").parentElement.hidden = kind === "risk";
    panels.replaceChildren();
    tables.replaceChildren();
    const judging = data.sets.filter((set) => !set.aside);
    byId("aside-choice").hidden = !judging.length || judging.length === data.sets.length;
    for (const set of judging.length && !byId("aside").checked ? judging : data.sets) {
      const there = set.runs.map((run, series) => ({ run, series, name: data.runs[series] })).filter(({ run }) => run);
      const staged = there.filter(({ run }) => run.reliability[stage]);
      const keys = there.map(({ name, series }) => key(series, isolated(name)));
      if (kind === "reliability") {
        if (staged.length) panels.append(reliabilityPanel(set.title, staged.map(({ run, series, name }) => ({ name, series, curve: run.reliability[stage] }))));
        for (const { run, name } of staged) tables.append(reliabilityTable(set.title, name, run.reliability[stage]));
        continue;
      }
      let svg;
      if (kind === "risk") {
        svg = riskPanel(set.title, there.map(({ run, series }) => ({ risk: run.risk, series })));
        const at = [0.25, 0.5, 0.75, 0.9, 1];
        const risk = ({ risk: r }, share) => r.risk[Math.max(0, r.coverage.findIndex((c) => c >= share - 1e-9))];
        tables.append(table(`${set.title}: wrong among the most confident share`, ["run", ...at.map((share) => percent(share, 0))], there.map(({ run, name }) => [name, ...at.map((share) => percent(risk(run, share)))])));
      } else {
        svg = cloudPanel(set.title, staged.map(({ run, series, name }) => ({ name, series, x: run.figures[stage].accuracy, y: run.figures[stage].ece, seeds: [] })), { x: "accuracy", y: "ECE" });
        tables.append(table(`${set.title}, ${stage} temperature`, ["run", "accuracy", "ECE"], staged.map(({ run, name }) => [name, percent(run.figures[stage].accuracy), percent(run.figures[stage].ece)])));
      }
      panels.append(element("figure", {}, element("h3", {}, isolated(set.title)), svg, element("figcaption", {}, keys)));
    }
    settle(panels);
  };
  for (const id of ["diagram", "stage", "aside"]) byId(id).addEventListener("change", draw);
  draw();
}
