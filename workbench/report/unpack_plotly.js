// plotly.js comes packed, in a script that browsers do not run; what the page draws meanwhile waits for it.
{
  const waiting = [];
  window.Plotly = { newPlot: (...figure) => { waiting.push(figure); } };
  const packed = atob(document.getElementById("plotly-packed").textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(unpacked).text().then((source) => {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
    for (const figure of waiting) window.Plotly.newPlot(...figure);
  });
}
