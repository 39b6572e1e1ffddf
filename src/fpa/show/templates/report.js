"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const namespace = one("#svg").namespaceURI;
  function make(parent, tag, attributes = {}, text = "") {
    const inSvg = parent.namespaceURI === namespace || tag === "svg";
    const element = inSvg ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    parent.append(element);
    return element;
  }
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const isNumber = (value) => typeof value === "number";
  const fixed = (value, digits) => isNumber(value) ? value.toFixed(digits).replace("-", "−") : "–";
  const percent = (value, digits = 1) => isNumber(value) ? fixed(100 * value, digits) : "–";

  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((s) => s * power >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  }
  function rangeOf(values) {
    const known = values.filter(isNumber);
    if (!known.length) return [0, 1];
    const low = Math.min(...known), high = Math.max(...known), room = 0.04 * (high - low || Math.abs(high) || 1);
    return [low - room, high + room];
  }

  /* Curves over shared x values with a cursor, and a table of the values there. A line: {key, line, dot, text, y}. */
  class Chart {
    constructor(parent, { title, xText, xTicks, xLabel, format, digits, height, onPoint }) {
      Object.assign(this, { title, xText, xTicks, xLabel, format, digits, height, lines: [], position: 0, range: [0, 1] });
      const box = make(parent, "figure", { class: "chart" });
      make(box, "figcaption", { class: "chart-title" }, title);
      this.svg = make(box, "svg", { height, role: "slider", "aria-label": title, "aria-valuemin": 0, tabindex: 0 });
      this.table = make(box, "table", { class: "values" });
      new ResizeObserver(() => this.svg.clientWidth !== this.width && this.draw()).observe(this.svg);
      const point = (event) => onPoint(this.nearest(event.clientX - this.svg.getBoundingClientRect().left));
      this.svg.addEventListener("pointermove", (event) => event.buttons && point(event));
      this.svg.addEventListener("pointerdown", point);
      this.svg.addEventListener("keydown", (event) => {
        const last = this.x.length - 1, here = Math.round(this.position);
        const next = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: last }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        onPoint(Math.max(0, Math.min(last, next)));
      });
    }
    show(x, lines, range) {
      Object.assign(this, { x, lines, range });
      this.table.replaceChildren();
      this.where = make(this.table, "caption");
      const body = make(this.table, "tbody");
      this.cells = lines.map(({ key, line, text }) => {
        const row = make(body, "tr", { "data-row": key }), label = make(row, "th", { scope: "row" });
        const swatch = make(label, "svg", { class: `swatch ${line}`, viewBox: "0 0 28 10", "aria-hidden": "true" });
        make(swatch, "line", { x1: 1, y1: 5, x2: 27, y2: 5 });
        label.append(text);
        return make(row, "td");
      });
      this.draw();
    }
    left(value) {
      const [from, to] = [this.x[0], this.x[this.x.length - 1]];
      return this.margin + (this.width - this.margin - 10) * (to > from ? (value - from) / (to - from) : 0.5);
    }
    top(value) {
      const [low, high] = this.range;
      return 6 + (this.height - 44) * (high - value) / (high - low);
    }
    nearest(left) {
      const away = this.x.map((value) => Math.abs(this.left(value) - left));
      return away.indexOf(Math.min(...away));
    }
    draw() {
      if (!this.x || !this.svg.clientWidth) return;
      this.width = this.svg.clientWidth;
      this.svg.replaceChildren();
      const yTicks = ticks(...this.range, 4).map((value) => [value, this.format(value)]);
      this.margin = 8 + 6.6 * Math.max(...yTicks.map(([, text]) => text.length));
      for (const [value, text] of yTicks) {
        const y = this.top(value);
        make(this.svg, "line", { class: "grid", x1: this.margin, x2: this.width - 10, y1: y, y2: y });
        make(this.svg, "text", { x: this.margin - 6, y: y + 4, "text-anchor": "end" }, text);
      }
      for (const [value, text] of this.xTicks(this.x, this.width)) {
        const end = this.left(value) + 3.3 * String(text).length > this.width;
        const place = end ? { x: this.width, "text-anchor": "end" } : { x: this.left(value), "text-anchor": "middle" };
        make(this.svg, "text", { ...place, y: this.height - 22 }, text);
      }
      const middle = (this.margin + this.width - 10) / 2;
      make(this.svg, "text", { x: middle, y: this.height - 6, "text-anchor": "middle" }, this.xLabel);
      this.rule = make(this.svg, "line", { class: "rule", y1: 6, y2: this.height - 38 });
      for (const { key, line, y } of this.lines) {
        make(this.svg, "path", { class: `line ${line}`, "data-line": key, d: `M${this.places(y).join("L")}` });
      }
      this.dots = this.lines.map(({ key, line, dot }) => make(this.svg, "circle", {
        class: `dot ${line} ${dot || ""}`, "data-dot": key, r: 4.5,
      }));
      this.move(this.position);
    }
    /* Where the values that are there lie, as in a path. */
    places(y) {
      const known = y.flatMap((value, i) => isNumber(value) ? [[this.left(this.x[i]), this.top(value)]] : []);
      return known.map(([left, top]) => `${left.toFixed(1)} ${top.toFixed(1)}`);
    }
    /* To a place among the x values, which may lie between two of them. */
    move(position) {
      this.position = Math.min(position, this.x.length - 1);
      if (!this.rule) return;
      const x = this.left(between(this.x, this.position));
      this.rule.setAttribute("x1", x);
      this.rule.setAttribute("x2", x);
      this.lines.forEach(({ y }, i) => {
        const value = between(y, this.position), dot = this.dots[i];
        dot.style.display = isNumber(value) ? "" : "none";
        if (!isNumber(value)) return;
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", this.top(value));
      });
      this.where.textContent = this.xText(between(this.x, this.position));
      this.lines.forEach(({ y }, row) => {
        const value = between(y, this.position);
        this.cells[row].textContent = isNumber(value) ? this.digits(value) : "–";
      });
      const read = this.lines.map(({ text }, row) => `${text} ${this.cells[row].textContent}`);
      this.svg.setAttribute("aria-valuemax", this.x.length - 1);
      this.svg.setAttribute("aria-valuenow", this.position);
      this.svg.setAttribute("aria-valuetext", `${this.where.textContent} ${read.join(", ")}`);
    }
  }
  function between(values, position) {
    const i = Math.floor(position), share = position - i;
    if (!share) return values[i];
    return isNumber(values[i]) && isNumber(values[i + 1]) ? values[i] + share * (values[i + 1] - values[i]) : null;
  }

  const shares = (x, width) => (width < 260 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1])
    .filter((value) => value <= x[x.length - 1] + 1e-9).map((value) => [value, `${100 * value} %`]);
  const removedLabel = `${data.unit} removed`;
  const output = data.output[0].toUpperCase() + data.output.slice(1);
  function explorer(found) {
    const { width, height, steps } = found, pixels = width * height;
    const form = one("#explorer-controls"), controls = form.elements;
    const images = bytes(found.images), fill = bytes(found.fill), shapes = found.shapes && bytes(found.shapes);
    const decoded = new Map();
    const unpacked = (text) => decoded.get(text) || decoded.set(text, bytes(text)).get(text);
    /* PRGn, as in the figures: green is what MIF removes first. */
    const stops = { 0: [247, 247, 247], 1: [128, 197, 129], 2: [0, 68, 27], "-1": [174, 139, 189], "-2": [64, 0, 75] };

    function colour(share) {
      const sign = Math.sign(share), size = 2 * Math.min(1, Math.abs(share)), low = Math.min(1, Math.floor(size));
      const [from, to] = [stops[sign * low || 0], stops[sign * (low + 1) || 0]];
      return from.map((value, c) => Math.round(value + (size - low) * (to[c] - value)));
    }
    function paint(canvas, pixel) {
      const context = canvas.getContext("2d"), picture = context.createImageData(width, height);
      for (let p = 0; p < pixels; p++) {
        const rgb = pixel(p);
        for (let c = 0; c < 3; c++) picture.data[4 * p + c] = rgb[c];
        picture.data[4 * p + 3] = 255;
      }
      context.putImageData(picture, 0, 0);
    }
    const original = (image) => (p) => images.subarray(3 * (image * pixels + p), 3 * (image * pixels + p) + 3);
    const removedColour = (image) => fill.length === 3 ? () => fill
      : (p) => fill.subarray(3 * (image * pixels + p), 3 * (image * pixels + p) + 3);

    /* The edges between pixels of the shape and the others, as one path. */
    function outlinePath(image) {
      const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && shapes[image * pixels + y * width + x];
      let path = "";
      for (let y = 0; y <= height; y++) for (let x = 0; x <= width; x++) {
        if (Boolean(inside(x, y)) !== Boolean(inside(x - 1, y))) path += `M${x} ${y}v1`;
        if (Boolean(inside(x, y)) !== Boolean(inside(x, y - 1))) path += `M${x} ${y}h1`;
      }
      return path;
    }

    const short = (value) => fixed(value, Math.abs(value) < 10 ? 2 : 1);
    const chart = new Chart(one("#example-board"), {
      title: `${output} of the explained class`, height: 240, xTicks: shares, xLabel: removedLabel,
      format: (value) => String(Number(value.toPrecision(3))).replace("-", "−"), digits: short,
      xText: (value) => `With ${percent(value)} % of the ${removedLabel}:`,
      onPoint: (i) => { controls.position.value = positionOf(data.fractions[i]); remove(); },
    });
    let current;

    function choose() {
      const image = Number(controls.image.value), model = found.models[controls["shown-model"].value];
      const map = model.maps[controls.map.value], curves = model.curves[controls.map.value];
      const example = found.examples[image], target = model.targets[image];
      const order = unpacked(map.positions).subarray(image * pixels, (image + 1) * pixels);
      const heat = new Int8Array(unpacked(map.heat).buffer).subarray(image * steps, (image + 1) * steps);
      current = { image, order, curves: { mif: curves.mif[image], lif: curves.lif[image] } };
      /* Without a label nobody knows whether the model is right. */
      const labelled = example.label === null ? "" : `, “${example.label}”`;
      one("#about").textContent = `Image ${example.index}${labelled}. ` + (model.others
        ? `The class explained is “${target}”.`
        : `The model${model.right[image] === false ? " wrongly" : ""} says “${target}”; that is the class explained.`);
      paint(one("#picture"), original(image));
      const heatColours = Array.from(heat, (value) => colour(value / 127));
      paint(one("#heat"), (p) => heatColours[order[p]]);
      const signed = heat.some((value) => value < 0), limit = map.limits[image];
      const ends = signed ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1];
      one("#scale-bar").style.background = `linear-gradient(90deg,${ends.map((end) => `rgb(${colour(end)})`)})`;
      one("#scale-low").textContent = signed ? `−${limit.toPrecision(2)}` : "0";
      one("#scale-high").textContent = limit.toPrecision(2);
      const path = shapes && controls.outline.checked ? outlinePath(image) : "";
      for (const overlay of all("svg.outline")) {
        overlay.replaceChildren();
        if (path) for (let i = 0; i < 2; i++) make(overlay, "path", { d: path });
      }
      one("#picture").setAttribute("aria-label", `Image ${example.index}${labelled}`);
      one("#heat").setAttribute("aria-label", `Importance of its ${data.unit} according to ${controls.map.selectedOptions[0].text}`);
      remove(true);
    }

    function remove(redraw = false) {
      const { image, order, curves } = current, mif = controls.order.value === "mif";
      const position = Number(controls.position.value), gone = removedColour(image), there = original(image);
      const isGone = mif ? (p) => order[p] >= steps - position : (p) => order[p] < position;
      paint(one("#masked"), (p) => isGone(p) ? gone(p) : there(p));
      let goneCount = 0, ofShape = 0, shape = 0;
      for (let p = 0; p < pixels; p++) {
        goneCount += isGone(p);
        if (shapes && shapes[image * pixels + p]) { shape++; ofShape += isGone(p); }
      }
      const share = found.shares ? goneCount / pixels : position / steps;
      const text = `${percent(share)} %${shape ? `, ${percent(ofShape / shape, 0)} % of the shape` : ""}`;
      one("#removed").textContent = text;
      controls.position.setAttribute("aria-valuetext", text);
      one("#masked").setAttribute("aria-label", `The image with ${text} removed, ${mif ? "most" : "least"} important first`);
      if (redraw) {
        const line = (key, style, text) => ({
          key, line: style, text, dot: (key === "mif") === mif ? "" : "other", y: curves[key],
        });
        chart.show(data.fractions, [line("mif", "mif d1", "MIF"), line("lif", "lif d0", "LIF")],
          rangeOf([0, ...curves.mif, ...curves.lif]));
      }
      chart.move(placeOf(shareAt(position)));
    }
    /* The share of the pixels or patches that is gone at a position of the slider, and the other way round. */
    const shareAt = (position) => found.shares ? found.shares[position] : position / steps;
    function positionOf(share) {
      return found.shares ? found.shares.findIndex((value) => value >= share - 1e-4) : Math.round(steps * share);
    }
    /* Where a share lies among the fractions of the curves, as a number of points. */
    function placeOf(share) {
      const i = Math.max(0, data.fractions.findLastIndex((fraction) => fraction <= share + 1e-9));
      const next = data.fractions[i + 1];
      return next === undefined ? i : i + Math.max(0, share - data.fractions[i]) / (next - data.fractions[i]);
    }

    /* The pictures one by one, as large as the window. */
    const large = one("#large"), frames = all(".pictures .frame");
    let shown = 0;
    function enlarge(which) {
      shown = (which + frames.length) % frames.length;
      const [from, to] = [one("canvas", frames[shown]), one("canvas", large)];
      to.getContext("2d").drawImage(from, 0, 0);
      to.setAttribute("aria-label", from.getAttribute("aria-label"));
      one("svg", large).replaceChildren(...[...one("svg", frames[shown]).children].map((path) => path.cloneNode()));
      one("#large-title").textContent = from.getAttribute("aria-label");
      if (!large.open) large.showModal();
    }
    frames.forEach((frame, which) => frame.addEventListener("click", () => enlarge(which)));
    large.addEventListener("click", ({ target }) => {
      if (target === large || target.value === "0") large.close();
      else if (target.value) enlarge(shown + Number(target.value));
    });
    large.addEventListener("keydown", ({ key }) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (step) enlarge(shown + step);
    });

    all(".thumb canvas").forEach((canvas, image) => paint(canvas, original(image)));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => event.target.name === "position" || choose());
    controls.position.addEventListener("input", () => remove());
    choose();
  }

  if (data.explorer) explorer(data.explorer);
})();
