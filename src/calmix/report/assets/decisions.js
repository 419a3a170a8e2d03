// What to do with samples: keep, relabel or drop; remembered by the browser, and downloaded as a table.
class Decisions {
  constructor(name, samples, columns) {
    this.name = `calmix-decisions-${name}`;
    this.samples = samples;
    this.columns = columns;
    this.made = new Map();
    try {
      const kept = JSON.parse(localStorage.getItem(this.name) || "[]");
      for (const [row, id, action, label] of kept) if (samples.id[row] === id) this.made.set(row, { action, label });
    } catch { /* no storage here, or something else in it: marks then live as long as the page */ }
  }

  set(row, action, label) {
    if (action === null) this.made.delete(row);
    else this.made.set(row, { action, label: action === "relabel" ? label : null });
    this.save();
  }

  clear() {
    this.made.clear();
    this.save();
  }

  save() {
    try {
      localStorage.setItem(this.name, JSON.stringify([...this.made].map(([row, { action, label }]) => [row, this.samples.id[row], action, label])));
    } catch { /* as above */ }
  }

  csv() {
    const { id, classes, label } = this.samples;
    const rows = [...this.made].sort((a, b) => a[0] - b[0]).map(([row, { action, label: given }]) => [id[row], classes[label[row]] ?? "", action, given === null ? "" : classes[given]]);
    const header = ["id", "label", "decision", "new_label"];
    // Which columns were named for the map, so that the command finds them wherever the file is put.
    if (Object.keys(this.columns).length) {
      header.push("columns");
      for (const cells of rows) cells.push(JSON.stringify(this.columns));
    }
    return [header, ...rows].map((cells) => cells.map(cell).join(",")).join("\r\n") + "\r\n";
  }
}

// As calmix writes CSV: what a spreadsheet would run as a formula gets a ' in front.
const cell = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

function download(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "text/csv;charset=utf-8" }));
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
