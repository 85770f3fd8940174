// Opens the file of the clicked link as JupyterLab serves it: the page alone knows which folder the server shows, and a
// file outside that folder has no address there.
const element = document.getElementById("jupyter-config-data");
const config = element ? JSON.parse(element.textContent) : {};
const root = (config.serverRoot || "").replace(/\/$/, "");
const path = [this.dataset.absolute, this.dataset.short].find((file) => root && file.startsWith(root + "/"));
if (path) {
  const place = path.slice(root.length + 1).split("/").map(encodeURIComponent).join("/");
  window.open(`${config.baseUrl || "/"}files/${place}`, "_blank", "noopener");
} else {
  this.textContent = "Not below the folder that Jupyter shows; open the file itself:";
}
return false;
