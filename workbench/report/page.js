// Brings a page to life: draws its figures, fills its table of trials, links the two, and follows work that goes on.
//
// Data are embedded next to the element that shows them, as JSON, packed where they are large; plotly.js comes packed, too. A page that
// `workbench view` serves asks for itself again and takes over what differs: what a reader has sorted, opened or zoomed stays.

const POLL_MS = 1500;

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function dataOf(place) {
  const script = place.querySelector(":scope > script");
  return JSON.parse(script.type === "application/gzip" ? await unpacked(script.textContent) : script.textContent);
}

let loading = null;
function plotly() {
  return loading ??= (async () => {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("plotly-packed").textContent);
    document.head.append(script);
    return globalThis.Plotly;
  })();
}

// -- figures and table ------------------------------------------------------------------------------------------------

let table = null; // the page's table of trials, if it has one

async function draw(figure) {
  const [library, { data, layout, config }] = await Promise.all([plotly(), dataOf(figure)]);
  const place = figure.querySelector(".drawing");
  figure.style.minHeight = `${layout.height}px`;
  await library.react(place, data, { ...layout, uirevision: "kept" }, config);
  if (!("trials" in figure.dataset) || figure.dataset.linked) return;
  figure.dataset.linked = "yes";
  place.on("plotly_click", ({ points }) => {
    const number = points[0]?.customdata?.[0];
    if (table?.byNumber.has(number)) table.select(number);
  });
}

/** Mark a trial in every figure that shows trials; null marks none. */
function mark(number) {
  for (const place of document.querySelectorAll(".plot[data-trials] .js-plotly-plot")) {
    place.data.forEach((trace, index) => {
      if (!trace.customdata) return;
      const at = Array.from(trace.customdata, (one, i) => (one?.[0] === number ? i : -1)).filter((i) => i >= 0);
      const change = number === null
        ? { selectedpoints: null }
        : { selectedpoints: [at], "selected.marker.size": 17, "selected.marker.opacity": 1, "unselected.marker.opacity": 0.35, "unselected.textfont.color": "#7A818C" };
      globalThis.Plotly.restyle(place, change, [index]);
    });
  }
}

async function fillTable(place) {
  const data = await dataOf(place);
  if (table && place.contains(table.host)) {
    table.update(data);
  } else {
    const host = place.appendChild(document.createElement("div"));
    const addressOf = (path) => path.split("/").map(encodeURIComponent).join("/") + "/"; // a run's page stands below the study's
    const runAddress = "served" in place.dataset ? addressOf : null;
    table = new TrialTable(host, data, { runAddress });
    host.addEventListener("wb-select", ({ detail }) => mark(detail));
  }
}

/** Draw the curves of the runs that are chosen; the server reads them. */
async function overlay() {
  const form = document.getElementById("overlay-form");
  const place = document.getElementById("overlaid");
  const chosen = new URLSearchParams(new FormData(form));
  const window = 2 ** Number(chosen.get("smooth"));
  form.querySelector("output").textContent = window > 1 ? `over ${window} steps` : "none";
  chosen.set("window", window);
  if (!chosen.has("run")) {
    place.textContent = "No run is chosen.";
    return;
  }
  let answer;
  try {
    answer = await fetch(`${location.pathname}?part=overlay&${chosen}`, { cache: "no-store" });
  } catch {
    return; // the server has ended, which the line at the top says
  }
  const text = await answer.text();
  if (!answer.ok) {
    place.textContent = text;
    return;
  }
  const fresh = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  const old = place.firstElementChild;
  if (old?.matches(".plot") && fresh.matches(".plot")) {
    old.querySelector(":scope > script").replaceWith(document.importNode(fresh.querySelector(":scope > script"), true));
    await draw(old);
  } else {
    place.replaceChildren(document.importNode(fresh, true));
    await fill(place);
  }
}

async function fill(root) {
  const within = (what) => [...(root.matches(what) ? [root] : []), ...root.querySelectorAll(what)];
  for (const form of within("#overlay-form")) {
    form.addEventListener("input", overlay);
    form.addEventListener("submit", (event) => event.preventDefault());
    if (!document.getElementById("overlaid").firstChild) overlay();
  }
  await Promise.all([...within(".plot").map(draw), ...within(".trials").map(fillTable)]);
  if (table?.selected != null) mark(table.selected);
}

// -- files to take away -----------------------------------------------------------------------------------------------

document.addEventListener("click", ({ target: button }) => {
  if (!button.matches(".take button")) return;
  const file = button.closest(".file").querySelector("pre");
  if (button.dataset.name) download(button.dataset.name, `${file.textContent.trimEnd()}\n`);
  else copy(button, file, file.textContent);
});

// -- a page that goes on ----------------------------------------------------------------------------------------------

const DRAWN = ".plot, .trials, [data-keep]"; // what is more than its HTML by now

/** Make what is shown what it should be: ``before`` is the HTML that ``shown`` was made from, ``fresh`` the new one. */
function takeOver(shown, before, fresh) {
  if (before.outerHTML === fresh.outerHTML || "keep" in fresh.dataset) return;
  const both = (what) => before.matches(what) && fresh.matches(what);
  if (both(".plot, .trials")) {
    shown.querySelector(":scope > script").replaceWith(fresh.querySelector(":scope > script").cloneNode(true));
    fill(shown);
  } else if (before.tagName === fresh.tagName && before.querySelector(DRAWN) && fresh.querySelector(DRAWN)) {
    takeOverChildren(shown, before, fresh);
  } else {
    const copy = document.importNode(fresh, true);
    const folded = new Map([...shown.querySelectorAll("details")].map((one) => [one.firstElementChild.textContent, one.open]));
    for (const one of copy.querySelectorAll("details")) one.open = folded.get(one.firstElementChild.textContent) ?? one.open;
    for (const one of copy.querySelectorAll("input, select")) {
      const old = [...shown.querySelectorAll(one.tagName)].find((other) => other.name === one.name && (one.type !== "checkbox" || other.value === one.value));
      if (old && one.type === "checkbox") one.checked = old.checked;
      else if (old) one.value = old.value;
    }
    shown.replaceWith(copy);
    fill(copy);
  }
}

function takeOverChildren(shown, before, fresh) {
  const name = (element) => element.id || `${element.tagName} ${element.className}`;
  const known = new Map();
  [...before.children].forEach((child, i) => known.set(name(child), [...(known.get(name(child)) ?? []), [shown.children[i], child]]));
  let place = null;
  for (const child of fresh.children) {
    const pair = known.get(name(child))?.shift();
    let next = pair?.[0];
    const after = place ? place.nextElementSibling : shown.firstElementChild;
    if (!pair) {
      next = shown.insertBefore(document.importNode(child, true), after);
      fill(next);
    } else {
      if (next !== after) shown.insertBefore(next, after);
      takeOver(next, pair[1], child);
      next = place ? place.nextElementSibling : shown.firstElementChild; // it may have been replaced
    }
    place = next;
  }
  for (const left of known.values()) left.forEach(([element]) => element.remove());
}

async function follow(main, before) {
  let version = main.dataset.version;
  const state = () => document.getElementById("live-state");
  for (;;) {
    await new Promise((done) => { setTimeout(done, POLL_MS * (document.hidden ? 6 : 1)); });
    let answer;
    try {
      answer = await fetch(`${location.pathname}?part=main&known=${encodeURIComponent(version)}`, { cache: "no-store" });
    } catch {
      if (state()) state().textContent = "workbench view has ended; this page shows what was known then";
      continue;
    }
    if (answer.status !== 200) continue; // 204: nothing new
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!fresh) continue;
    version = fresh.dataset.version;
    takeOverChildren(main, before, fresh);
    before = fresh;
  }
}

const main = document.querySelector("main");
const before = main.cloneNode(true);
fill(main);
if ("version" in main.dataset) follow(main, before);
