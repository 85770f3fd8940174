// Keeps the figures of a panel as wide as their places; runs once, as `onload` of an invisible image in the panel.
//
// Plotly's widget draws itself before it stands on the page, knows no width then, and is not told that its tab was
// opened. Its figures do listen to the window, so the window gets a resize event when a drawing and its place differ: a few times
// for every width, or a figure of a fixed width would ask for ever. The image stays where it is: what a widget has put
// on the page is the widget's to remove.
//
// A figure's title is written on the page above it: text of the page breaks where the place ends, plotly's does not.
//
// ipywidgets has no names for handles of sliders and boxes of numbers: they get that of the label beside them. The heads
// of its accordions are known to the mouse alone: they become buttons.
const root = this.closest(".wb-panel");
this.onload = null;
if (root) {
  let timer;
  const watched = new WeakSet();
  const look = () => { clearTimeout(timer); timer = setTimeout(fit, 60); };
  const places = new ResizeObserver(look);
  const entitle = (plot) => {
    const {text, subtitle} = plot.layout.title ?? {};
    // Plotly knows a few marks; all else that looks like one is text.
    const marked = (words) => (words ?? "").replaceAll("<br>", " ").replace(/<(?!\/?(?:b|i|sup|sub)>)/g, "&lt;");
    const html = `<b>${marked(text)}</b><span>${marked(subtitle?.text)}</span>`;
    let title = plot.querySelector(":scope > .wb-figure-title");
    if (!title) {
      title = document.createElement("div");
      title.className = "wb-figure-title";
      plot.append(title);
      plot.classList.add("wb-titled");
    }
    if (title.dataset.html !== html) { title.dataset.html = html; title.innerHTML = html; }
    plot.style.setProperty("--wb-title-height", `${title.offsetTop + title.offsetHeight}px`);
  };
  const fit = () => {
    for (const part of root.querySelectorAll(".noUi-handle:not([aria-label]), input[type=number]:not([aria-label])")) {
      const label = part.closest(".wb-field, .wb-row")?.querySelector(".wb-label");
      if (label) part.ariaLabel = label.textContent;
    }
    for (const head of root.querySelectorAll(".jupyter-widget-Collapse-header")) {
      if (!head.role) {
        Object.assign(head, {role: "button", tabIndex: 0});
        head.addEventListener("click", look);
        head.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          event.stopPropagation();  // JupyterLab runs or scrolls with them
          head.click();
        });
      }
      head.ariaLabel = head.textContent.trim();  // without the arrow, which is a letter of an icon font
      head.ariaExpanded = String(head.parentElement.classList.contains("jupyter-widget-Collapse-open"));
    }
    let differs = false;
    for (const plot of root.querySelectorAll(".js-plotly-plot")) {
      if (!watched.has(plot)) { watched.add(plot); places.observe(plot); plot.on("plotly_afterplot", look); }
      const width = plot.clientWidth, drawn = plot.querySelector(".main-svg");
      if (!width || !drawn || !plot.layout) continue;
      entitle(plot);
      if (Math.abs(drawn.width.baseVal.value - width) < 1) continue;
      const data = plot.dataset;
      if (data.wbWidth != width) { data.wbWidth = width; data.wbAsked = 0; }
      if (data.wbAsked < 3) { data.wbAsked++; differs = true; }
    }
    if (!differs) return;
    window.dispatchEvent(new Event("resize"));
    timer = setTimeout(fit, 400);
  };
  places.observe(root);
  new MutationObserver(look).observe(root, {childList: true, subtree: true});
  look();
}
