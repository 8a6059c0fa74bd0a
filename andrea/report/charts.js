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

const palette = ["#4a90d9", "#f28e2b", "#3fa66b", "#e15759", "#a678c8", "#9c755f", "#d37295", "#b8a12c"]; // on white and on black

for (const chart of charts) {
  // a source has one colour on the whole page; what is no source has one of three others, and smoothed that of the text
  for (const trace of chart.traces) {
    const place = chart.sources.indexOf(trace.name);
    trace.inked = place < 0 && trace.name === "smoothed";
    const other = trace.mode === "markers" ? "#8a8f98" : trace.inked ? colours()["font.color"] : "#1f9e9e";
    const color = place < 0 ? other : palette[place % palette.length];
    trace.line = { ...trace.line, color };
    trace.marker = { ...trace.marker, color };
  }
  const layout = {
    margin: { l: 60, r: 15, t: 30, b: chart.traces.length > 1 ? 90 : 45 },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    hovermode: "x unified",
    // with a format, logarithmic axes write 0.5 where they would write a small 5
    xaxis: { title: { text: "step" }, tickformat: ",~r", zeroline: false },
    yaxis: {
      title: { text: chart.unit, standoff: 8 }, automargin: true, tickformat: "~g", nticks: chart.log ? 5 : 0, // more write 0.8 over 0.9
      type: chart.log ? "log" : "linear", rangemode: chart.whole ? "tozero" : "normal",
    },
  };
  // steps at which the recipe changes
  layout.shapes = chart.marks.map(([step]) => ({
    type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line: { width: 1, dash: "dot", color: "#8a8f98" },
  }));
  layout.annotations = chart.marks.map(([step, text]) => ({
    x: step, yref: "paper", y: 1, yanchor: "bottom", text, showarrow: false,
  }));
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
  const now = colours(), ink = now["font.color"];
  for (const chart of charts) {
    const inked = [...chart.traces.keys()].filter((place) => chart.traces[place].inked);
    Plotly.relayout("chart-" + chart.id, now);
    if (inked.length) Plotly.restyle("chart-" + chart.id, { "line.color": ink, "marker.color": ink }, inked);
  }
});
