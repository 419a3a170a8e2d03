// A cloud of points: drawn pixel by pixel, which is fast everywhere, and found again through a grid.
const CELLS = 256;
const MARGIN = { left: 56, right: 12, top: 12, bottom: 40 };

class Cloud {
  constructor(canvas, x, y, { right, bottom, top }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.x = x;
    this.y = y;
    // Points on the frame are whole.
    this.whole = { x0: 0, x1: right + 0.02 * right, y0: bottom, y1: top + 0.02 * (top - bottom) };
    this.view = { ...this.whole };
    this.stride = 1;
    this.index();
    this.resize();
  }

  // Which points are in which cell of the whole: sorted by counting.
  index() {
    const n = this.x.length, cell = new Uint32Array(n), starts = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < n; i++) {
      cell[i] = this.column(this.x[i]) + CELLS * this.row(this.y[i]);
      starts[cell[i] + 1]++;
    }
    for (let c = 0; c < CELLS * CELLS; c++) starts[c + 1] += starts[c];
    const order = new Uint32Array(n), next = starts.slice();
    for (let i = 0; i < n; i++) order[next[cell[i]]++] = i;
    this.starts = starts;
    this.order = order;
  }

  column(x) { return Math.max(0, Math.min(CELLS - 1, Math.floor((x / this.whole.x1) * CELLS))); }
  row(y) { return Math.max(0, Math.min(CELLS - 1, Math.floor(((y - this.whole.y0) / (this.whole.y1 - this.whole.y0)) * CELLS))); }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    this.scale = Math.min(2, window.devicePixelRatio || 1);
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.max(1, Math.round(box.width * this.scale));
    this.canvas.height = Math.max(1, Math.round(box.height * this.scale));
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // From data to CSS pixels, and back.
  across(x) { return MARGIN.left + ((x - this.view.x0) / (this.view.x1 - this.view.x0)) * (this.width - MARGIN.left - MARGIN.right); }
  down(y) { return this.height - MARGIN.bottom - ((y - this.view.y0) / (this.view.y1 - this.view.y0)) * (this.height - MARGIN.top - MARGIN.bottom); }
  atX(px) { return this.view.x0 + ((px - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (this.view.x1 - this.view.x0); }
  atY(py) { return this.view.y0 + ((this.height - MARGIN.bottom - py) / (this.height - MARGIN.top - MARGIN.bottom)) * (this.view.y1 - this.view.y0); }

  // `style[i]` is an index into `palette` ([r, g, b]); 255 hides a point. `ringed` rows are drawn again, as rings.
  // While the map moves (`fast`) only every so many points are drawn, as many as keep it smooth here.
  draw({ style, palette, paper, ringed, ring, shown, fast }) {
    const begun = performance.now();
    const { pixels, x, y } = this, wide = this.canvas.width, high = this.canvas.height;
    pixels.fill(colourWord(paper));
    const size = (shown > 20000 ? 1.5 : shown > 3000 ? 2 : 3) * this.scale;
    const stamp = disc(fast ? size * 0.7 : size, wide);
    const alpha = shown > 20000 ? 110 : shown > 3000 ? 150 : 200;
    const sx = (this.across(1) - this.across(0)) * this.scale, ox = this.across(0) * this.scale;
    const sy = (this.down(1) - this.down(0)) * this.scale, oy = this.down(0) * this.scale;
    const edge = Math.ceil(size) + 4;
    const put = (i, colour, offsets, a) => {
      const px = Math.round(x[i] * sx + ox), py = Math.round(y[i] * sy + oy);
      if (px < edge || py < edge || px >= wide - edge || py >= high - edge) return;
      const base = py * wide + px, r = colour[0], g = colour[1], b = colour[2];
      for (let k = 0; k < offsets.length; k++) {
        const at = base + offsets[k], under = pixels[at];
        const ur = under & 255, ug = (under >> 8) & 255, ub = (under >> 16) & 255;
        pixels[at] = (0xff000000 | ((ub + (((b - ub) * a) >> 8)) << 16) | ((ug + (((g - ug) * a) >> 8)) << 8) | (ur + (((r - ur) * a) >> 8))) >>> 0;
      }
    };
    for (let i = 0; i < x.length; i += fast ? this.stride : 1) {
      const s = style[i];
      if (s !== 255) put(i, palette[s], stamp, alpha);
    }
    if (!fast) {
      const around = circle(size + 1.6 * this.scale, this.scale, wide);
      for (const i of ringed) if (style[i] !== 255) put(i, ring, around, 210);
    }
    this.context.putImageData(this.image, 0, 0);
    if (!fast) return;
    const took = performance.now() - begun;
    if (took > 9) this.stride = Math.min(64, Math.ceil((this.stride * took) / 6));
    else if (took < 3) this.stride = Math.max(1, Math.floor(this.stride * 0.8));
  }

  // The rows in a box of data that pass `wanted`.
  inside(x0, x1, y0, y1, wanted) {
    const found = [], { x, y } = this;
    for (let r = this.row(y0); r <= this.row(y1); r++) {
      for (let k = this.starts[this.column(x0) + CELLS * r]; k < this.starts[this.column(x1) + CELLS * r + 1]; k++) {
        const i = this.order[k];
        if (x[i] >= x0 && x[i] <= x1 && y[i] >= y0 && y[i] <= y1 && wanted(i)) found.push(i);
      }
    }
    return found;
  }

  // The nearest point to a place in CSS pixels, if one is close.
  nearest(px, py, wanted, reach = 12) {
    let best = -1, least = reach * reach;
    for (const i of this.inside(this.atX(px - reach), this.atX(px + reach), this.atY(py + reach), this.atY(py - reach), wanted)) {
      const dx = this.across(this.x[i]) - px, dy = this.down(this.y[i]) - py, far = dx * dx + dy * dy;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }

  // The rows inside a polygon of places in CSS pixels.
  within(polygon, wanted) {
    const corners = polygon.map(([px, py]) => [this.atX(px), this.atY(py)]);
    const xs = corners.map((c) => c[0]), ys = corners.map((c) => c[1]);
    return this.inside(Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys), (i) => wanted(i) && contains(corners, this.x[i], this.y[i]));
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const { view, whole } = this, cx = this.atX(px), cy = this.atY(py);
    const widest = whole.x1 - whole.x0;
    const stretch = Math.min(Math.max(factor, widest / 2000 / (view.x1 - view.x0)), (1.2 * widest) / (view.x1 - view.x0));
    this.view = { x0: cx - (cx - view.x0) * stretch, x1: cx + (view.x1 - cx) * stretch, y0: cy - (cy - view.y0) * stretch, y1: cy + (view.y1 - cy) * stretch };
    this.hold();
  }

  move(dx, dy) {
    const { view } = this;
    const mx = (dx / (this.width - MARGIN.left - MARGIN.right)) * (view.x1 - view.x0);
    const my = (dy / (this.height - MARGIN.top - MARGIN.bottom)) * (view.y1 - view.y0);
    this.view = { x0: view.x0 - mx, x1: view.x1 - mx, y0: view.y0 + my, y1: view.y1 + my };
    this.hold();
  }

  // The middle of the view stays on the data.
  hold() {
    const { view, whole } = this;
    const middle = (view.x0 + view.x1) / 2, centre = (view.y0 + view.y1) / 2;
    const dx = Math.min(Math.max(middle, whole.x0), whole.x1) - middle, dy = Math.min(Math.max(centre, whole.y0), whole.y1) - centre;
    this.view = { x0: view.x0 + dx, x1: view.x1 + dx, y0: view.y0 + dy, y1: view.y1 + dy };
  }
}

const colourWord = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;

function disc(radius, wide) {
  const offsets = [], reach = Math.ceil(radius);
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) if (dx * dx + dy * dy <= radius * (radius + 0.6)) offsets.push(dy * wide + dx);
  return Int32Array.from(offsets);
}

function circle(radius, thick, wide) {
  const offsets = [], reach = Math.ceil(radius);
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
    const far = Math.sqrt(dx * dx + dy * dy);
    if (far <= radius + 0.3 && far > radius - thick - 0.3) offsets.push(dy * wide + dx);
  }
  return Int32Array.from(offsets);
}

function contains(corners, x, y) {
  let inside = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [xi, yi] = corners[i], [xj, yj] = corners[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
