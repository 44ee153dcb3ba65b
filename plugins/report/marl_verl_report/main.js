// The start of the page, its controls, and live updates.
function runSection(run) {
  const start = run.starts.at(-1), quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  const plugins = run.plugins.map((each) => [each.plugin, each.distribution, each.version, each.error ?? ""]);
  const began = run.starts.map((each) => `marl-verl train ${(each.arguments ?? []).map(quote).join(" ")}`);
  const host = start?.machine ?? {}, of = (value) => value ?? "?";
  const machine = start ? [...(host.gpus ?? []).map((gpu) => Object.values(gpu).join(", ")),
    `${of(host.cpus)} CPU cores, ${of(host.memory_gib)} GiB, ${of(host.system)}, Python ${of(host.python)}`,
    Object.entries(start.packages ?? {}).map(([name, version]) => `${name} ${version}`).join(", ")] : ["not stored by this run"];
  const config = Object.values(run.config).join("");
  return el("section", { class: "run" }, el("h3", {}, run.name),
    el("p", {}, `${run.folder}: step ${run.at} of ${run.steps ?? "?"}${run.done ? ", finished" : ""}, seed ${run.seed}`),
    run.stopped ? el("p", { class: "error" }, run.stopped) : null,
    el("h4", {}, "Team and algorithm, resolved"), el("pre", {}, [run.algorithm, config].filter(Boolean).join("\n\n")),
    el("h4", {}, "Plugins"), table(["plugin", "distribution", "version", "", ""], plugins),
    el("h4", {}, "Machine"), el("pre", {}, machine.join("\n")),
    el("h4", {}, "Started with"), el("pre", {}, began.join("\n")));
}

// Replaces only what differs, so that selected text stays selected.
function renew(parent, sections) {
  const old = [...parent.children];
  if (old.length !== sections.length) parent.replaceChildren(...sections);
  else sections.forEach((section, at) => {
    const parts = [...section.children];
    if (old[at].children.length !== parts.length) old[at].replaceWith(section);
    else parts.forEach((part, place) => {
      const shown = old[at].children[place];
      if (!shown.isEqualNode(part)) shown.replaceWith(part);
    });
  });
}

function overview() {
  by("summary").textContent = app.runs.map((run) =>
    `${run.name}: step ${run.at} of ${run.steps ?? "?"}${run.stopped ? ", stopped" : ""}`).join("; ");
  if (app.runs.length > 1) by("differences").replaceChildren(el("h3", {}, "Settings that differ"),
    app.data.differences.length ? table(["", ...app.runs.map((run) => run.name)], app.data.differences) : el("p", {}, "None."));
  renew(by("runs"), app.runs.map(runSection));
  charts();
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

function agents() {
  options(by("f-agent"), [["", "all"], ...app.runs[view.run].agents.map((agent) => [agent, agent])], by("f-agent").value);
}

// A live page goes on to the newest step until the user has chosen a step or an episode.
function stay() {
  by("f-follow").value = "";
}

function live() {
  by("follows").hidden = false;
  const source = new EventSource("events");
  startPlaying(source);
  source.addEventListener("runs", (event) => {
    const [before] = app.runs, [run] = app.runs = JSON.parse(event.data), repeated = repeats(before, run);
    if (repeated) app.steps = new Map();
    overview();
    const known = shownSteps(0, view.kind), newest = known.at(-1);
    if (!known.includes(view.step) || (by("f-follow").value && newest !== view.step)) {
      Object.assign(view, { step: null, chosen: null });
      episodes(view.task);
    } else if (repeated || (view.bare && run.rows.includes(view.step))) episodes(view.task);  // or its rows came later
    else updateSlider();
    by("status").textContent = run.stopped ?? (run.done ? "The run has finished." : "Live: updated as the run goes on.");
  });
  source.addEventListener("problem", (event) => { by("status").textContent = JSON.parse(event.data); });
  source.onerror = () => { by("status").textContent = "Not connected: marl-verl watch has ended."; };
}

async function main() {
  app.data = JSON.parse(new TextDecoder().decode(bytes("data")));
  app.runs = JSON.parse(await unpack("runs"));
  by("notes").replaceChildren(...app.data.notes.map((note) => el("li", {}, note)));
  options(by("f-run"), app.runs.map((run, at) => [String(at), run.name]), "0");
  if (!shownSteps(0, "train").length && shownSteps(0, "test").length) by("f-kind").value = view.kind = "test";
  agents();
  overview();
  by("f-run").addEventListener("change", (event) => {
    Object.assign(view, { run: Number(event.target.value), step: null, shown: PAGE });
    agents();
    episodes(view.task);
  });
  by("f-kind").addEventListener("change", (event) => {
    Object.assign(view, { kind: event.target.value, step: null, shown: PAGE });
    episodes(view.task);
  });
  by("f-step").addEventListener("input", (event) => {
    stay();
    Object.assign(view, { step: shownSteps(view.run, view.kind)[Number(event.target.value)], shown: PAGE });
    episodes(view.task);
  });
  for (const id of ["f-task", "f-result", "f-agent", "f-invalid", "f-advantage"])
    by(id).addEventListener("input", () => { view.shown = PAGE; episodes(view.task); });
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("filters").addEventListener("reset", (event) => {
    event.preventDefault();
    for (const id of ["f-task", "f-result", "f-agent", "f-invalid", "f-advantage"]) by(id).value = "";
    episodes(view.task);
  });
  by("f-follow").addEventListener("input", () => { if (by("f-follow").value) { view.step = null; episodes(view.task); } });
  by("more").addEventListener("click", () => { view.shown += PAGE; episodes(view.task); });
  by("list").addEventListener("keydown", moves);
  by("metric").addEventListener("input", anyMetric);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  await episodes();
  by("status").textContent = `marl-verl ${app.data.version}`;
  document.documentElement.dataset.ready = "true";
  if (app.data.live) live();
  const script = el("script");
  script.textContent = await unpack("library");
  document.head.append(script);
  for (const element of drawn.keys()) { nearby.unobserve(element); nearby.observe(element); }
}

main().catch((error) => { by("status").className = "error"; by("status").textContent = `The page cannot be shown: ${error.message}`; });
