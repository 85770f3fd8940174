// Copies the file that stands below the clicked button; without a clipboard the file is selected instead.
function copyFile(button) {
  const file = button.closest(".file").querySelector("pre");
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

// Saves the file that stands below the clicked button under its name.
function saveFile(button) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([button.closest(".file").querySelector("pre").textContent.trimEnd(), "\n"]));
  link.download = button.dataset.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
