// Elements, numbers, and the data of the page. Every text becomes a text node: nothing here builds markup.
const app = { runs: [], steps: new Map(), data: {} };
const MOST_STEPS = 20;  // unpacked steps that are kept

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "who") element.style.setProperty("--who", `var(--a${value})`);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const by = (id) => document.getElementById(id);

function number(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "unknown" : String(value);
  return String(Number(value.toPrecision(6)));
}

function table(titles, rows) {
  const cells = (tag, row) => row.map((value) =>
    el(tag, typeof value === "number" ? { class: "n" } : {}, typeof value === "number" ? number(value) : value ?? ""));
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {},
    titles ? el("thead", {}, el("tr", {}, cells("th", titles))) : null,
    el("tbody", {}, rows.map((row) => el("tr", {}, cells("td", row))))));
}

function bytes(name) {
  const text = atob(by(`blob-${name}`).textContent);
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

async function unpack(name) {
  const stream = new Blob([bytes(name)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// The role of an agent: of a spawned one, "worker#2", it is "worker".
const role = (agent) => agent.split("#")[0];

// The colour of an agent: the position of its role in the run's team.
function colour(run, agent) {
  const at = app.runs[run].agents.indexOf(role(agent));
  return (at < 0 ? 7 : at) % 8;
}

const where = (run, kind, step) => `${run}-${kind}-${step}`;

// Steps of a run that the page can show: all stored ones where live, else those in the file.
function shownSteps(run, kind) {
  return app.runs[run].stored[kind].filter((step) => app.data.live || by(`blob-${where(run, kind, step)}`));
}

// Whether a resumed run repeats steps: it has another start, or a step is no longer stored.
function repeats(before, after) {
  return before.starts.length !== after.starts.length || Object.entries(before.stored).some(([kind, steps]) => {
    const kept = new Set(after.stored[kind]);
    return steps.some((step) => !kept.has(step));
  });
}

async function loadStep(run, kind, step) {
  const name = where(run, kind, step), cache = app.steps;  // a new cache replaces it where steps are repeated
  if (!cache.has(name)) {
    const whole = !app.data.live || kind === "test" || app.runs[run].rows.includes(step);
    let found;
    if (app.data.live) {
      const reply = await fetch(`step?kind=${kind}&step=${step}`);
      found = await reply.json();
      if (!reply.ok) throw new Error(found.error);
    } else found = JSON.parse(await unpack(name));
    if (whole) cache.set(name, found);
    if (cache.size > MOST_STEPS) cache.delete(cache.keys().next().value);
    return found;
  }
  return cache.get(name);
}
