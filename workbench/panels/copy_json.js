// Copies the JSON of the panel that the clicked button stands in; only a page can reach the clipboard.
const text = this.closest(".wb-panel").querySelector(".wb-json textarea"), button = this;
const copied = () => {
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};
const select = () => {
  text.select();
  document.execCommand("copy");
  copied();
};
if (navigator.clipboard) {
  navigator.clipboard.writeText(text.value).then(copied, select);
} else {
  select();
}
