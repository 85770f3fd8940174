// The table of a study's trials: sorted by any column, filtered, with a page of rows at a time, and one trial opened.
//
// One module for report.html, the page of `workbench view` and the Tune tab (where anywidget calls `render`). Its data are
// those of workbench/report/trial_data.py. A host gets `wb-select`, an event with the number of the trial or null, when
// a trial is opened or closed; `select` does the same from outside, as a click on a point of a figure asks for.

const PAGE = 25;
const ALL = "";
const NO_FILTERS = { words: "", state: ALL, level: ALL, part: ALL, feasible: false };

const IN_PICTURES = new Set(["svg", "line", "text", "polyline", "circle", "title"]);

/** Make an element: properties are attributes, those that begin with "on" listeners; children are elements or texts. */
function make(tag, properties = {}, ...children) {
  const namespace = IN_PICTURES.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Write a number with four digits, as the figures do. */
function compact(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return size >= 1e4 ? String(Math.round(value)) : String(Number(value.toPrecision(4)));
}

function text(value, column = {}) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "on" : "off";
  if (typeof value === "string") return value.replace(/(\d) %/g, "$1\u00a0%");
  if (typeof value !== "number") return JSON.stringify(value);
  const shown = value * (column.factor ?? 1);
  const digits = column.unit === "x" || column.unit === "%" || column.unit === "points";
  const word = digits ? shown.toFixed(2) : compact(shown);
  const gain = column.key === "drop" && shown < 0; // a drop below zero is none
  const measured = column.unit ? `${gain ? word.slice(1) : word}\u00a0${column.unit}` : word;
  return gain ? `${measured.replace(/^-/, "")} gained` : measured;
}

/** Return a sentence with what stands in backticks as code. */
function withCode(sentence) {
  return sentence.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
}

/** Return round numbers between two, about `most` of them. */
function ticks(low, high, most = 6) {
  if (!(high > low)) return [low];
  const least = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= least);
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Order two cells; what is not known comes last, whichever way the column is sorted. */
function compare(a, b, direction) {
  const unknown = (value) => value === null || value === undefined || value === "";
  if (unknown(a) || unknown(b)) return unknown(a) - unknown(b);
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
}

function nested(flat) {
  const config = {};
  for (const [path, value] of Object.entries(flat)) {
    if (value === null) continue;
    const dot = path.indexOf(".");
    if (dot < 0) config[path] = value;
    else (config[path.slice(0, dot)] ??= {})[path.slice(dot + 1)] = value;
  }
  return config;
}

/** Copy a text; where the page may not use the clipboard the text is selected instead. */
async function copy(button, shown, content) {
  const before = button.dataset.word ??= button.textContent;
  let word = "Copied";
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    getSelection().selectAllChildren(shown);
    word = document.execCommand("copy") ? "Copied" : "Selected";
  }
  button.textContent = word;
  setTimeout(() => { button.textContent = before; }, 1500);
}

function download(name, content) {
  const address = URL.createObjectURL(new Blob([content]));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export class TrialTable {
  /** Fill an empty element; `runAddress`, if given, turns the run folder of a trial into an address to open, and `take`
      takes the configuration of the trial with a number, and `note` keeps what a person writes about it. */
  constructor(host, data, { runAddress = null, take = null, note = null } = {}) {
    this.host = host;
    this.runAddress = runAddress;
    this.take = take;
    this.note = note;
    this.sort = { key: "number", direction: 1 };
    this.filters = { ...NO_FILTERS };
    this.columns = null; // shown ones, once the reader has chosen
    this.page = 0;
    this.selected = null;
    this.against = null; // number of the trial that the open one is compared with; null: the reference
    host.classList.add("wb-trials");
    this.controls = make("div", { class: "wbt-controls" });
    this.count = make("p", { class: "wbt-count", role: "status" });
    this.box = make("div", { class: "wbt-box", tabindex: 0, role: "region", "aria-label": "Table of trials; Enter opens a row" });
    this.pager = make("div", { class: "wbt-pager" });
    this.detail = make("section", { class: "wbt-detail", hidden: true, tabindex: -1 });
    this.detail.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); this.close(); }
    });
    host.replaceChildren(this.controls, this.count, this.box, this.pager, this.detail);
    this.update(data);
  }

  /** Show newer data; what the reader sorted, filtered, chose and opened stays. */
  update(data) {
    this.data = data;
    this.byNumber = new Map(data.trials.map((row) => [row.number, row]));
    const isNumber = ({ key, kind }) => kind === "number" || data.trials.every((row) => row[key] == null || typeof row[key] === "number");
    this.numbers = new Set(data.columns.filter(isNumber).map((column) => column.key));
    this.drawControls();
    this.draw();
    const writes = this.detail.contains(document.activeElement) && document.activeElement.tagName === "TEXTAREA";
    if (this.selected !== null && !writes) this.drawDetail();
  }

  /** Open a trial, or none, and go to the page it stands on; rows that the filters hide come back for it. */
  select(number, { focus = false } = {}) {
    const row = this.byNumber.get(number);
    this.selected = row ? number : null;
    if (row && !this.rows().includes(row)) {
      Object.assign(this.filters, NO_FILTERS);
      this.drawControls();
    }
    if (row) this.page = Math.floor(this.rows().indexOf(row) / PAGE);
    this.draw();
    this.drawDetail();
    if (row && focus) this.detail.focus({ preventScroll: true });
    if (row) this.reveal(number);
    this.host.dispatchEvent(new CustomEvent("wb-select", { detail: this.selected, bubbles: true }));
  }

  /** Bring the row of a trial into the table's own box, and the opened trial onto the page. */
  reveal(number) {
    const line = this.box.querySelector(`tr[data-number="${number}"]`);
    const [inside, around] = [line.getBoundingClientRect(), this.box.getBoundingClientRect()];
    if (inside.top < around.top + 40 || inside.bottom > around.bottom) this.box.scrollTop += inside.top - around.top - 80;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.detail.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  }

  close() {
    const number = this.selected;
    this.select(null);
    this.box.querySelector(`tr[data-number="${number}"]`)?.focus();
  }

  rows() {
    const { words, state, level, part, feasible } = this.filters;
    const asked = words.toLowerCase().split(/\s+/).filter(Boolean);
    const { key, direction } = this.sort;
    const wordsOf = (row) => `trial ${row.number} ${row.summary} ${row.came_to} ${row.notes.join(" ")} ${row.note}`.toLowerCase();
    return this.data.trials
      .filter((row) => (!state || row.state === state) && (!level || row.level === level)
        && (!part || row.parts.includes(part)) && (!feasible || row.feasible)
        && asked.every((word) => wordsOf(row).includes(word)))
      .sort((a, b) => compare(a[key], b[key], direction) || a.number - b.number);
  }

  shown() {
    return this.data.columns.filter((column) => this.columns ? this.columns.has(column.key) : column.shown);
  }

  // -- what stands above the table ------------------------------------------------------------------------------------

  drawControls() {
    const held = this.controls.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const isOpen = this.controls.querySelector("details")?.open ?? false;
    const count = (values) => values.reduce((found, value) => found.set(value, (found.get(value) ?? 0) + 1), new Map());
    const trials = this.data.trials;
    const search = make("input", {
      type: "search", placeholder: "Search trials", "aria-label": "Search trials", "data-name": "words",
      oninput: () => this.filter("words", search.value),
    });
    search.value = this.filters.words;
    const parts = [
      search,
      this.choice("state", "State", count(trials.map((row) => row.state)), 1),
      this.choice("level", "Level", count(trials.map((row) => row.level)), 2),
      this.choice("part", "Part in effect", count(trials.flatMap((row) => row.parts)), 1),
    ];
    const box = make("input", { type: "checkbox", "data-name": "feasible", onchange: () => this.filter("feasible", box.checked) });
    box.checked = this.filters.feasible;
    parts.push(make("label", { class: "wbt-check" }, box, "within the allowed drop"), this.columnChooser(isOpen));
    this.controls.replaceChildren(...parts.filter(Boolean));
    if (held) this.controls.querySelector(`[data-name="${CSS.escape(held)}"]`)?.focus();
  }

  choice(name, title, counts, fewest) {
    if (counts.size < fewest) return null;
    const select = make("select", { "data-name": name, "aria-label": title, onchange: () => this.filter(name, select.value) },
      make("option", { value: ALL }, `${title}: any`),
      ...[...counts].sort().map(([value, n]) => make("option", { value }, `${value} (${n})`)));
    if (!counts.has(this.filters[name])) this.filters[name] = ALL;
    select.value = this.filters[name];
    return select;
  }

  columnChooser(isOpen) {
    const boxes = this.data.columns.map((column) => {
      const box = make("input", {
        type: "checkbox", "data-name": `column ${column.key}`,
        onchange: () => {
          this.columns ??= new Set(this.shown().map((one) => one.key));
          if (box.checked) this.columns.add(column.key);
          else this.columns.delete(column.key);
          this.draw();
        },
      });
      box.checked = this.shown().includes(column);
      box.disabled = column.key === "number"; // a row without its number could not be named
      return make("label", { class: "wbt-check" }, box, column.title);
    });
    return make("details", { class: "wbt-columns", open: isOpen },
      make("summary", { "data-name": "columns" }, "Columns"), make("div", { class: "wbt-menu" }, ...boxes));
  }

  filter(name, value) {
    this.filters[name] = value;
    this.page = 0;
    this.draw();
  }

  // -- the table ------------------------------------------------------------------------------------------------------

  draw() {
    const rows = this.rows();
    const columns = this.shown();
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const first = this.page * PAGE;
    const visible = rows.slice(first, first + PAGE);
    const held = this.heldByKeyboard();
    const table = make("table", { "aria-rowcount": rows.length + 1 },
      make("thead", {}, make("tr", {}, ...columns.map((column) => this.head(column)))),
      make("tbody", {}, ...visible.map((row, index) => this.row(row, columns, first + index + 2))));
    this.box.replaceChildren(table);
    if (!this.box.querySelector("tbody [tabindex='0']")) this.box.querySelector("tbody tr")?.setAttribute("tabindex", 0);
    if (held) this.box.querySelector(held)?.focus({ preventScroll: true });
    const all = this.data.trials.length;
    this.count.textContent = rows.length === all ? `${all} trial${all === 1 ? "" : "s"}` : `${rows.length} of ${all} trials`;
    this.drawPager(pages, first, visible.length, rows.length);
  }

  /** Return how to find again what has the keyboard, which redrawing takes away. */
  heldByKeyboard() {
    const held = document.activeElement;
    if (!held || !this.box.contains(held)) return null;
    if (held.dataset.number) return `tr[data-number="${held.dataset.number}"]`;
    return held.dataset.key ? `button[data-key="${CSS.escape(held.dataset.key)}"]` : null;
  }

  head(column) {
    const { key, direction } = this.sort;
    const sorted = key === column.key ? (direction > 0 ? "ascending" : "descending") : "none";
    const arrow = { ascending: "▲", descending: "▼", none: "" }[sorted];
    const number = this.numbers.has(column.key);
    return make("th", { scope: "col", "aria-sort": sorted, class: number ? "wbt-number" : "" },
      make("button", {
        type: "button", "data-key": column.key, title: `Sort by ${column.title}`,
        onclick: () => {
          const first = ["speed", "speed_low", "speed_high"].includes(column.key) ? -1 : 1; // the fastest first
          this.sort = { key: column.key, direction: key === column.key ? -direction : first };
          this.page = 0;
          this.draw();
        },
      }, column.title, make("span", { class: "wbt-arrow", "aria-hidden": "true" }, arrow)));
  }

  row(row, columns, place) {
    const isOpen = row.number === this.selected;
    const exported = Object.entries(this.data.exported).filter(([, number]) => number === row.number).map(([target]) => target);
    const name = make("th", { class: "wbt-number", scope: "row" }, String(row.number),
      row.note !== "" && make("span", { title: row.note, role: "img", "aria-label": "has a note" }, " ✎"),
      exported.length > 0 && make("span", { class: "wbt-mark", title: `exported as ${exported.join(" and ")}` }, exported.join(" ")));
    const styleOf = (key) => this.numbers.has(key) ? "wbt-number" : { summary: "wbt-wide", came_to: "wbt-words" }[key];
    const cells = columns.map((column) => column.key === "number" ? name : make("td", { class: styleOf(column.key) }, text(row[column.key], column)));
    return make("tr", {
      "data-number": row.number, "data-state": row.state, "aria-rowindex": place, "aria-selected": String(isOpen),
      tabindex: isOpen ? 0 : -1,
      class: row.feasible ? "" : "wbt-beyond",
      onclick: () => this.select(isOpen ? null : row.number),
      onkeydown: (event) => this.key(event, row.number),
    }, ...cells);
  }

  key(event, number) {
    const rows = [...this.box.querySelectorAll("tbody tr")];
    const at = rows.indexOf(event.currentTarget);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.select(number, { focus: true });
    else if (event.key === "PageDown" || event.key === "PageUp") this.turn(event.key === "PageDown" ? 1 : -1);
    else if (rows[to]) {
      rows[at].setAttribute("tabindex", -1);
      rows[to].setAttribute("tabindex", 0);
      rows[to].focus();
    } else if (to === undefined) return;
    event.preventDefault();
  }

  turn(by) {
    this.page = Math.max(0, this.page + by);
    this.draw();
    this.box.querySelector("tbody tr")?.focus({ preventScroll: true });
  }

  drawPager(pages, first, shown, all) {
    if (pages === 1) {
      this.pager.replaceChildren();
      return;
    }
    const button = (name, by, isOff) => make("button", { type: "button", disabled: isOff, onclick: () => this.turn(by) }, name);
    this.pager.replaceChildren(
      button("Previous", -1, this.page === 0),
      make("span", {}, `${first + 1} to ${first + shown} of ${all}`),
      button("Next", 1, this.page === pages - 1));
  }

  // -- one trial ------------------------------------------------------------------------------------------------------

  drawDetail() {
    const row = this.byNumber.get(this.selected);
    this.detail.hidden = !row;
    if (!row) {
      this.detail.replaceChildren();
      return;
    }
    this.detail.setAttribute("aria-label", `Trial ${row.number}`);
    // When the same trial is redrawn, keep its configuration expanded and an unsaved note.
    const { number, note } = this.detail.dataset;
    const isSame = number === String(row.number);
    const isOpen = isSame && this.detail.querySelector(".wbt-config")?.open;
    const typed = isSame ? this.detail.querySelector("textarea")?.value ?? note : note;
    Object.assign(this.detail.dataset, { number: row.number, note: row.note });
    const facts = this.data.columns
      .filter((column) => !["number", "summary", "came_to"].includes(column.key) && row[column.key] != null)
      .flatMap((column) => [make("dt", {}, column.title), make("dd", {}, text(row[column.key], column))]);
    this.detail.replaceChildren(...[
      make("div", { class: "wbt-top" },
        make("h3", {}, `Trial ${row.number}, ${row.came_to}`),
        this.take && make("button", { type: "button", onclick: () => this.take(row.number) }, "Use this configuration"),
        make("button", { type: "button", onclick: () => this.close(), "aria-label": `Close trial ${row.number}` }, "Close")),
      make("p", {}, row.summary || row.level),
      ...row.notes.map((note) => make("p", { class: "wbt-note" }, ...withCode(note))),
      this.noteOf(row),
      make("div", { class: "wbt-parts" },
        make("div", {}, make("h4", {}, "Figures"), make("dl", {}, ...facts)),
        this.differences(row)),
      this.curve(row),
      ...this.files(row),
    ].filter(Boolean));
    if (isOpen) this.detail.querySelector(".wbt-config").open = true;
    const box = this.detail.querySelector("textarea");
    if (isSame && box && typed !== note && typed.trim() !== row.note) {
      box.value = typed;
      box.dispatchEvent(new Event("input"));
    }
  }

  /** Return what a person has written about a trial, in a box to write in where it can be kept. */
  noteOf(row) {
    if (!this.note) return row.note && make("p", { class: "wbt-own-note" }, make("b", {}, "Note: "), row.note);
    const box = make("textarea", { rows: 2, placeholder: "what you want to remember about this trial" });
    box.value = row.note;
    const keep = make("button", { type: "button", disabled: true, onclick: () => { this.note(row.number, box.value); keep.disabled = true; } }, "Keep note");
    box.addEventListener("input", () => { keep.disabled = box.value === row.note; });
    return make("div", { class: "wbt-own-note" }, make("label", {}, "Note", box), keep);
  }

  config(row) {
    return { ...this.data.base, ...row.changes };
  }

  /** Return the numbers of the trials that one is compared with: the reference and O0, without itself. */
  others(row) {
    return [...new Set([this.data.reference, 0])].filter((number) => number !== row.number && this.byNumber.has(number));
  }

  differences(row) {
    const offered = this.others(row);
    if (!offered.length) return null;
    const number = offered.includes(this.against) ? this.against : offered[0];
    const other = this.byNumber.get(number);
    const exported = Object.values(this.data.exported);
    const called = (one) => one === 0 ? "O0" : `trial ${one}, ${exported.includes(one) ? "exported" : "the lowest score"}`;
    const select = make("select", { "aria-label": "Compared with", onchange: () => { this.against = Number(select.value); this.drawDetail(); } },
      ...offered.map((one) => make("option", { value: one }, called(one))));
    select.value = number;
    const [mine, theirs] = [this.config(row), this.config(other)];
    const acts = (one, path) => path in one.changes && !one.idle.includes(path);
    const paths = [...new Set([...Object.keys(row.changes), ...Object.keys(other.changes)])]
      .filter((path) => JSON.stringify(mine[path]) !== JSON.stringify(theirs[path]) && (acts(row, path) || acts(other, path)));
    const body = paths.length
      ? make("table", {}, make("thead", {}, make("tr", {}, ...["Setting", `Trial ${row.number}`, number ? `Trial ${number}` : "O0"].map((title) => make("th", { scope: "col" }, title)))),
        make("tbody", {}, ...paths.map((path) => make("tr", {}, make("th", { scope: "row" }, path), make("td", {}, text(mine[path])), make("td", {}, text(theirs[path]))))))
      : make("p", {}, "Nothing that is in effect differs.");
    return make("div", {}, make("h4", {}, "Differences from ", select), make("div", { class: "wbt-scroll", tabindex: 0, role: "region", "aria-label": "Differences" }, body));
  }

  /** Draw the evaluations of a trial above those of O0 and of the trial it is compared with. */
  curve(row) {
    const factor = this.data.factor;
    const lines = [...this.others(row).reverse().map((number) => [number, number === 0 ? "wbt-base" : "wbt-best"]), [row.number, "wbt-own"]]
      .map(([number, style]) => ({ number, style, points: this.byNumber.get(number).curve.filter(([, metric]) => metric !== null).map(([step, metric]) => [step, metric * factor]) }))
      .filter((line) => line.points.length > 1);
    if (!lines.some((line) => line.number === row.number)) return null;
    const all = lines.flatMap((line) => line.points);
    const [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
    const last = Math.max(...all.map((p) => p[0]));
    const [width, height, left, right, top, bottom] = [640, 220, 64, 12, 12, 34];
    const x = (step) => left + (width - left - right) * step / last;
    const y = (metric) => height - bottom - (height - top - bottom) * (high > low ? (metric - low) / (high - low) : 0.5);
    const said = (line) => line.number === 0 ? "O0" : `trial ${line.number}`;
    const words = `${this.data.metric} against batches: ${lines.map(said).join(", ")}`;
    const picture = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
      ...ticks(low, high).flatMap((value) => [
        make("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "wbt-grid" }),
        make("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, compact(value))]),
      ...ticks(0, last).map((step) => make("text", { x: x(step), y: height - 10, "text-anchor": step === last ? "end" : "middle" }, compact(step))),
      ...lines.flatMap((line) => [
        make("polyline", { points: line.points.map(([step, metric]) => `${x(step)},${y(metric)}`).join(" "), class: line.style }),
        ...line.points.map(([step, metric]) => make("circle", { cx: x(step), cy: y(metric), r: line.number === row.number ? 3.5 : 2.5, class: line.style },
          make("title", {}, `${said(line)} had ${compact(metric)} after ${step} batches`)))]));
    const legend = make("p", { class: "wbt-legend" }, `${this.data.metric} against batches: `,
      ...lines.reverse().map((line) => make("span", { class: line.style }, said(line))));
    return make("div", { class: "wbt-curve" }, make("h4", {}, "Curve"), legend, picture);
  }

  files(row) {
    const written = JSON.stringify(nested(this.config(row)), null, 2);
    const name = `boost_config.trial${row.number}.json`;
    const code = make("pre", { tabindex: 0, "aria-label": "Configuration" }, make("code", {}, written));
    const copyButton = make("button", { type: "button", onclick: () => copy(copyButton, code, written) }, "Copy");
    const config = make("details", { class: "wbt-config" }, make("summary", {}, "Configuration"),
      make("div", { class: "wbt-buttons" }, copyButton,
        make("button", { type: "button", onclick: () => download(name, `${written}\n`) }, `Download ${name}`)),
      this.data.rounded && make("p", { class: "wbt-note" }, "Five digits of each number; `workbench view` has them all."), code);
    if (!row.run) return [config];
    const address = this.runAddress?.(row.run);
    const where = address ? make("a", { href: address }, row.run) : make("code", {}, row.run);
    return [config, make("p", { class: "wbt-note" }, "Run folder: ", where)];
  }
}

/** Show the table in a notebook: traits `data` and `selected` (a number, or -1) of an anywidget. */
function render({ model, el }) {
  const host = el.appendChild(document.createElement("div"));
  const table = new TrialTable(host, model.get("data"), {
    take: (number) => model.send({ take: number }), note: (number, text) => model.send({ note: number, text }),
  });
  const chosen = () => model.get("selected");
  const show = () => { if ((table.selected ?? -1) !== chosen()) table.select(chosen() < 0 ? null : chosen()); };
  const renew = () => table.update(model.get("data"));
  table.host.addEventListener("wb-select", (event) => {
    model.set("selected", event.detail ?? -1);
    model.save_changes();
  });
  model.on("change:data", renew);
  model.on("change:selected", show);
  show();
  return () => { model.off("change:data", renew); model.off("change:selected", show); };
}

export default { render };
