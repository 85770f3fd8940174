// Draws a figure and keeps it as wide as its place. Plotly, of five megabytes, is asked for once per page.
//
// With the same `uirevision` plotly keeps what a reader has changed, but for the range of an axis that an update sets: that
// is carried over here. VERSION and CONFIG are replaced by plotly's version and the configuration of all figures.
const shared = (globalThis["__workbenchPlotly_VERSION"] ??= {asked: 0, arrived: false});
shared.plotly ??= new Promise((done, fail) => Object.assign(shared, {done, fail}));

const isAxis = (name) => /^[xy]axis/.test(name);
const isZoomed = (axis, given) => given?.range ? String(axis.range) !== String(given.range) : axis.autorange === false;

// A figure's title is written on the page above it: text of the page breaks where the place ends, plotly's does not.
const entitle = (plot) => {
  const {text, subtitle} = plot.layout.title ?? {};
  // Plotly knows a few marks; all else that looks like one is text.
  const marked = (words) => (words ?? "").replaceAll("<br>", " ").replace(/<(?!\/?(?:b|i|sup|sub)>)/g, "&lt;");
  let title = plot.querySelector(":scope > .wb-figure-title");
  if (!title) {
    title = document.createElement("div");
    title.className = "wb-figure-title";
    plot.append(title);
    plot.classList.add("wb-titled");
  }
  title.innerHTML = `<b>${marked(text)}</b><span>${marked(subtitle?.text)}</span>`;
  plot.style.setProperty("--wb-title-height", `${title.offsetTop + title.offsetHeight}px`);
};

export default {
  initialize({model}) {
    model.on("msg:custom", (_, [script]) => {
      if (shared.arrived) return;
      shared.arrived = true;
      const parts = ["const module = {exports: {}};", script, "export default module.exports;"];
      const address = URL.createObjectURL(new Blob(parts, {type: "text/javascript"}));
      import(address).then((loaded) => shared.done(loaded.default), shared.fail).finally(() => URL.revokeObjectURL(address));
    });
    const ask = () => {
      if (shared.arrived) return;
      if (Date.now() - shared.asked > 5000) {  // who was asked first may have been closed meanwhile
        shared.asked = Date.now();
        model.send({plotly: "module"});
      }
      setTimeout(ask, 1000);
    };
    ask();
  },

  async render({model, el}) {
    const plotly = await shared.plotly, plot = document.createElement("div");
    let width = 0, given = {};
    el.replaceChildren(plot);
    const show = async () => {
      if (!width) return;  // its tab is not open
      const before = given, {data, layout} = JSON.parse(model.get("figure"));
      given = structuredClone(layout);  // plotly writes into what it is given
      layout.width ??= width;
      for (const [name, axis] of Object.entries(plot.layout ?? {})) {
        if (isAxis(name) && before.uirevision === given.uirevision && isZoomed(axis, before[name])) {
          layout[name] = {...layout[name], range: axis.range, autorange: axis.autorange};
        }
      }
      const isFirst = !plot.on;
      await plotly.react(plot, data, layout, CONFIG);
      if (isFirst) plot.on("plotly_click", ({points}) => {
        const carried = points[0].customdata;
        if (carried != null) model.send({pick: typeof carried === "object" ? carried[0] : carried});
      });
      if (el.closest(".wb-panel")) entitle(plot);
    };
    const places = new ResizeObserver(() => {
      if (width === el.clientWidth) return;
      width = el.clientWidth;
      show();
    });
    places.observe(el);
    model.on("change:figure", show);
    return () => {
      model.off("change:figure", show);
      places.disconnect();
      plotly.purge(plot);
    };
  },
};
