// A box for JSON: coloured and checked while it is typed, taken when it is left (or with Ctrl+Enter).
const PARTS = /("(?:\\.|[^"\\])*")(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\b(?:true|false|null)\b/g;
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
const coloured = (text) => {
  let html = "", end = 0;
  for (const found of text.matchAll(PARTS)) {
    const kind = found[1] ? (found[2] ? "wb-key" : "wb-string") : "wb-number";
    html += `${escaped(text.slice(end, found.index))}<span class="${kind}">${escaped(found[0])}</span>`;
    end = found.index + found[0].length;
  }
  return `${html}${escaped(text.slice(end))}\n`;
};

export default {
  render({model, el}) {
    const below = document.createElement("pre"), box = document.createElement("textarea");
    Object.assign(below, {ariaHidden: "true", tabIndex: -1});  // it scrolls, and would have the keyboard otherwise
    Object.assign(box, {title: model.get("help"), spellcheck: false, ariaLabel: model.get("help")});
    el.classList.add("wb-json");
    el.dataset.lmSuppressShortcuts = "true";  // else JupyterLab would take Ctrl+Enter and run the cell
    el.replaceChildren(below, box);
    let waiting;
    const paint = () => { below.innerHTML = coloured(box.value); below.scrollTop = box.scrollTop; };
    const send = (name) => { clearTimeout(waiting); model.set(name, box.value); model.save_changes(); };
    const show = () => { box.value = model.get("value"); paint(); };
    const rest = () => { box.readOnly = model.get("disabled"); };
    box.addEventListener("input", () => { paint(); clearTimeout(waiting); waiting = setTimeout(send, 250, "draft"); });
    box.addEventListener("scroll", () => { below.scrollTop = box.scrollTop; });
    box.addEventListener("blur", () => { if (box.value !== model.get("value")) send("value"); });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send("value");
    });
    model.on("change:value", show);
    model.on("change:disabled", rest);
    show();
    rest();
    return () => { model.off("change:value", show); model.off("change:disabled", rest); };
  },
};
