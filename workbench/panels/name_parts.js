// Names for what ipywidgets leaves without; runs once, as `onload` of an invisible image in the panel. The image stays
// where it is: what a widget has put on the page is the widget's to remove.
//
// Entries and handles of sliders get the label beside them as their name, else their tooltip. The heads of accordions
// are known to the mouse alone: they become buttons.
const ENTRIES = ":is(.noUi-handle, input:not([type=checkbox]), select, textarea):not([aria-label])";
const root = this.closest(".wb-panel");
this.onload = null;
if (root) {
  let timer;
  const look = () => { clearTimeout(timer); timer = setTimeout(name, 60); };
  const name = () => {
    for (const part of root.querySelectorAll(ENTRIES)) {
      const label = part.closest(".wb-field, .wb-row")?.querySelector(".wb-label");
      part.ariaLabel = label?.textContent || part.title || null;
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
  };
  new MutationObserver(look).observe(root, {childList: true, subtree: true});
  look();
}
