// Learning curves, drawn by Plotly when they come near the visible part of the page.
const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const symbols = ["circle", "square", "diamond", "triangle-up", "x", "star"];
const drawn = new Map();  // element -> its lines
const nearby = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "300px" });

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One run: a colour per name, the same one in all charts, and for more than 8 names a dash. Several runs: a colour per
// run, for more than 8 a symbol, and a dash per line.
function style(line, labels) {
  const agents = app.runs.flatMap((run) => run.agents), named = labels.some((label) => agents.includes(label));
  const names = [...new Set([...(named ? agents : []), ...labels])], at = names.indexOf(line.label);
  const one = app.runs.length === 1, row = names.filter((name) => labels.includes(name)).indexOf(line.label);
  const color = css(`--a${(one ? at : line.run) % 8}`), dash = dashes[(one ? Math.floor(at / 8) : row) % dashes.length];
  return { color, dash, symbol: symbols[Math.floor(line.run / 8) % symbols.length] };
}

function draw(element) {
  const lines = drawn.get(element);
  if (!lines || !window.Plotly || element.drawn === lines) return;
  element.drawn = lines;
  const labels = [...new Set(lines.map((line) => line.label))], traces = [];
  for (const line of lines) {
    const { color, dash, symbol } = style(line, labels);
    const name = app.runs.length === 1 ? line.label : `${app.runs[line.run].name}: ${line.label}`;
    const id = `${line.run} ${line.label}`, shared = { type: "scatter", x: line.x, legendgroup: id };
    if (line.low) {
      const edge = { ...shared, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      traces.push({ ...edge, uid: `low ${id}`, y: line.low },
        { ...edge, uid: `high ${id}`, y: line.high, fill: "tonexty", fillcolor: `${color}26` });
    }
    traces.push({ ...shared, uid: id, y: line.y, name: plain(name),
      mode: line.x.length > 30 && line.run < 8 ? "lines" : "lines+markers",
      line: { color, dash, width: 2 }, marker: { size: line.x.length > 30 ? 4 : 7, symbol } });
  }
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
  const share = lines.every((line) => line.chart === "Team success");
  const short = Math.max(...lines.map((line) => line.x.at(-1) ?? 0)) <= 10;  // else there are ticks between steps
  Plotly.react(element, traces, {
    margin: { l: 40, r: 8, t: 8, b: 30 }, height: tall(lines), uirevision: "kept", font: { color: css("--ink"), size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: lines.length > 12 ? "closest" : "x unified",
    hoverlabel: { namelength: -1, bgcolor: css("--back"), font: { color: css("--ink") } },
    legend: { orientation: "h", y: -0.12, tracegroupgap: 0 }, showlegend: traces.length > 1,
    xaxis: { ...axis, ticksuffix: "", hoverformat: "d", ...(short ? { dtick: 1 } : {}) }, yaxis: share ? { ...axis, range: [0, 1.02] } : axis,
  }, { responsive: true, displaylogo: false, displayModeBar: false });
}

// Pixels of a chart with a line of its legend for each of up to 12 lines.
const tall = (lines) => 210 + 19 * Math.min(Math.max(lines.length, 3), 12);

// Plotly reads a few tags in names, such as <b>: they are shown as written. A long legend would hide the chart.
const plain = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function last(line) {
  const at = line.y.findLastIndex((value) => value !== null);
  if (at < 0) return [line, null, ""];
  const band = line.low && line.low[at] !== null ? `${number(line.low[at])} to ${number(line.high[at])}` : "";
  return [line, line.y[at], band];
}

function figure(title, lines) {
  const plot = el("div", { class: "plot", role: "img" }), values = el("details", {}, el("summary", {}, "Latest values"));
  const made = el("figure", { "data-title": title }, el("figcaption", {}, title, " ", el("small", {}, lines[0].unit)), plot, values);
  fill(made, lines);
  return made;
}

// New lines in a figure; what is open stays open.
function fill(made, lines) {
  const plot = made.querySelector(".plot"), title = made.dataset.title;
  const rows = lines.map(last).map(([line, value, band]) => [
    app.runs.length > 1 ? app.runs[line.run].name : "", line.label, value, band]);
  const text = rows.map((row) => `${row[0]} ${row[1]} ${number(row[2])}`).join(", ");
  plot.setAttribute("aria-label", `${title}, latest values: ${text}`);
  made.querySelector("details .scroll")?.remove();
  made.querySelector("details").append(table(["run", "", "value", "interval"], rows));
  plot.style.height = `${tall(lines)}px`;  // before it is drawn, so that nothing moves then
  drawn.set(plot, lines);
  nearby.unobserve(plot);
  nearby.observe(plot);
}

function charts() {
  const found = new Map();
  app.runs.forEach((run, at) => run.lines.forEach((line) => {
    if (!found.has(line.chart)) found.set(line.chart, []);
    found.get(line.chart).push({ ...line, run: at });
  }));
  const old = new Map([...by("charts").querySelectorAll("figure")].map((each) => [each.dataset.title, each]));
  const figures = [...found].map(([title, lines]) => {
    const kept = old.get(title);
    if (kept) fill(kept, lines);
    return kept ?? figure(title, lines);
  });
  if (!figures.length) figures.push(el("p", { class: "note" }, "No metrics are recorded yet."));
  if (figures.length !== by("charts").children.length || figures.some((each) => !each.isConnected))
    by("charts").replaceChildren(...figures);
  const names = [...new Set(app.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
  const select = by("metric"), chosen = select.value;
  select.replaceChildren(...names.map((name) => el("option", { selected: name === chosen }, name)));
  if (names.length) anyMetric();
}

function anyMetric() {
  const name = by("metric").value, lines = [];
  app.runs.forEach((run, at) => {
    if (run.metrics[name]) lines.push({ ...run.metrics[name], label: name, run: at, unit: "" });
  });
  const shown = by("any").querySelector("figure");
  if (lines.length && shown?.dataset.title === name) fill(shown, lines);
  else by("any").replaceChildren(...(lines.length ? [figure(name, lines)] : []));
}

function restyle() {
  for (const element of drawn.keys()) if (element.drawn) { element.drawn = null; draw(element); }
}
