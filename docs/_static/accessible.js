// What the theme leaves out for readers without a mouse: levels of captions, and focus for what scrolls sideways.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('[role="heading"]:not([aria-level])')) caption.setAttribute("aria-level", "2");
  for (const part of document.querySelectorAll("pre, .table-wrapper, table.dataframe")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
});
