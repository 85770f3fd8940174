// Draw the figures of a notebook's page; their colours are made for a light and a dark page alike.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".wb-figure")) {
    const figure = JSON.parse(place.querySelector("script").textContent);
    Plotly.newPlot(place, figure.data, figure.layout, { ...figure.config, responsive: true });
  }
});
