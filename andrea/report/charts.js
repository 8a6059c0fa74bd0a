// Draws the charts of the page from the JSON in #charts, in the reader's colours, and follows the check boxes.
"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    paper_bgcolor: value("--ground"), plot_bgcolor: value("--ground"), "font.color": value("--ink"),
    "xaxis.gridcolor": value("--line"), "yaxis.gridcolor": value("--line"),
  };
}

for (const chart of charts) {
  const layout = {
    margin: { l: 55, r: 15, t: 30, b: chart.traces.length > 1 ? 90 : 45 },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    hovermode: "x unified",
    colorway: ["#4a90d9", "#f28e2b", "#3fa66b", "#e15759", "#a678c8", "#9c755f", "#d37295", "#8a8f98"], // on white and on black
    // with a format, logarithmic axes write 0.5 where they would write a small 5
    xaxis: { title: { text: "step" }, tickformat: ",~r", zeroline: false },
    yaxis: { title: { text: chart.unit }, tickformat: "~g", type: chart.log ? "log" : "linear", rangemode: chart.whole ? "tozero" : "normal" },
  };
  const place = document.getElementById("chart-" + chart.id);
  Plotly.newPlot(place, chart.traces, layout, { responsive: true, displaylogo: false });
  Plotly.relayout(place, colours());
}

for (const box of document.querySelectorAll("input[data-chart]")) {
  const place = document.getElementById("chart-" + box.dataset.chart);
  box.addEventListener("change", () => {
    Plotly.relayout(place, { [box.dataset.axis + ".type"]: box.checked ? "log" : "linear" });
  });
}

dark.addEventListener("change", () => {
  for (const chart of charts) Plotly.relayout("chart-" + chart.id, colours());
});
