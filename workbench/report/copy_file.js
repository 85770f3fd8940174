// Copies the file that stands below the clicked button; without a clipboard the file is selected instead.
function copyFile(button) {
  const file = button.parentElement.querySelector("pre");
  const say = (word) => {
    button.textContent = word;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const select = () => {
    getSelection().selectAllChildren(file);
    say(document.execCommand("copy") ? "Copied" : "Selected");
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(file.textContent).then(() => say("Copied"), select);
  } else {
    select();
  }
}
