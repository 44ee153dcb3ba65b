// Filters, the list of episodes, and one episode as a conversation.
const PAGE = 50, LONG = 5000;
const view = { run: 0, kind: "train", step: null, chosen: null, shown: PAGE, asked: 0 };

const turnsOf = (episode) => episode.effects.filter((effect) => effect.rewards);
const taskOf = (each) => each.task.id ?? each.task;  // of an episode, or of a failed attempt

// Failed attempts may share an id.
const keyOf = (step, each) => ("failure" in each ? `failed ${step.failures.indexOf(each)} ${each.id}` : each.id);

// Escapes the characters of an untrusted text that change the direction of the text around it.
const harmless = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (each) => `\\u${each.charCodeAt(0).toString(16)}`);

// An id, a task or an agent: its direction does not affect the text around it, and a long one is cut.
function bdi(text, attributes = {}) {
  const cut = text.length > 300 ? `${text.slice(0, 300)} ... (${text.length} characters)` : text;
  return el("bdi", attributes, harmless(cut));
}

function folded(title, text, open) {
  return el("details", { open: open && text.length <= 300 }, el("summary", {}, bdi(title)), el("pre", {}, harmless(text)));
}

// A text of any length; of a long one the first 500 characters, and the whole folded.
function whole(text, attributes = {}) {
  if (text.length <= LONG) return [el("pre", attributes, harmless(text))];
  return [el("pre", attributes, `${harmless(text.slice(0, 500))} ...`), folded(`All ${text.length} characters`, text, false)];
}

function keeps(episode) {
  const turns = turnsOf(episode), agent = by("f-agent").value, task = by("f-task").value.toLowerCase();
  const own = [...turns, ...episode.off_path_turns].filter((turn) => !agent || role(turn.agent) === agent);
  const advantages = own.filter((turn) => turn.row).map((turn) => turn.row.advantage);
  const result = by("f-result").value, invalid = by("f-invalid").value, advantage = by("f-advantage").value;
  return own.length > 0
    && (!task || [episode.task.id, episode.task.prompt, episode.id].some((text) => text.toLowerCase().includes(task)))
    && (!result || (result === "success") === episode.success)
    && (!invalid || (invalid === "invalid") === own.some((turn) => turn.invalid !== null))
    && (!advantage || (advantage === "zero" ? advantages.length > 0 && advantages.every((value) => value === 0)
      : advantages.some((value) => (advantage === "positive" ? value > 0 : value < 0))));
}

const showsFailed = () => by("f-result").value === "failed";

// The episodes, or the failed attempts, that match the filters.
function matching(step) {
  if (!showsFailed()) return step.episodes.filter(keeps);
  const task = by("f-task").value.toLowerCase();
  return step.failures.filter((each) => [each.task, each.id].some((text) => text.toLowerCase().includes(task)));
}

function list(step) {
  const found = matching(step);
  by("count").textContent = showsFailed() ? `${found.length} of ${step.failures.length} failed attempts`
    : `${found.length} of ${step.episodes.length} episodes; ${found.filter((each) => each.success).length} with success`;
  const items = found.slice(0, view.shown).map((each) => el("li", {}, el("button", {
    type: "button", "data-id": each.id, "aria-current": keyOf(step, each) === view.chosen ? "true" : null,
    onclick: () => {
      stay();
      Object.assign(view, { chosen: keyOf(step, each), task: taskOf(each) });
      list(step);
      show(step, each);
      by("episode").focus({ preventScroll: true });
    },
  }, el("span", { class: "entry" },
    el("span", { class: each.success ? "yes" : "no" }, `${each.success ? "✓" : "✗"} ${each.failure ?? number(each.score)} `),
    bdi(each.id), " ", bdi(taskOf(each))))));
  by("list").replaceChildren(...items);
  by("more").hidden = found.length <= view.shown;
  return found;
}

// Also moves in the list with the arrow keys.
function moves(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...by("list").querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
  if (!step || at < 0 || !buttons[at + step]) return;
  event.preventDefault();
  buttons[at + step].focus();
}

function turnOf(step, turn) {
  const observation = turn.observation.map(([role, text]) => (turn.observation.length > 1 || role !== "user"
    ? `${role}: ${text}` : text)).join("\n");
  const rewards = Object.entries(turn.rewards || {});
  const place = turn.node !== null && turn.node !== undefined ? `, node ${turn.node}` : "";
  const called = turn.called ? [", called as ", bdi(turn.called)] : [];
  return el("div", { class: "turn", who: colour(view.run, turn.agent), "data-turn": `${turn.session}-${turn.index}` },
    el("div", {}, bdi(turn.agent, { class: "who" }), " slot ", bdi(`${turn.slot}`), place, ...called,
      turn.length ? `, ${turn.length} tokens` : ""),
    folded(`Observation (${observation.length} characters)`, observation, true),
    turn.parameters ? folded("Parameters of the request", JSON.stringify(turn.parameters, null, 1), false) : null,
    whole(turn.action || turn.tool_calls?.length ? turn.action : "(empty)", { class: "says" }),
    (turn.tool_calls ?? []).map((call) => folded(`calls ${call.function.name}`, call.function.arguments, false)),
    el("div", {},
      turn.invalid !== null && turn.invalid !== undefined
        ? el("span", { class: "chip no" }, "invalid: ", bdi(turn.invalid)) : null,
      rewards.map(([name, value]) => el("span", { class: "chip" },
        `${titled(step, name)} ${number(value)}`)),
      turn.row ? [el("span", { class: "chip" }, `group of ${step.groups[turn.row.group].size}`),
        el("span", { class: "chip" }, `baseline ${number(turn.row.baseline)}`),
        el("span", { class: `chip ${turn.row.advantage > 0 ? "yes" : turn.row.advantage < 0 ? "no" : ""}` },
          `advantage ${number(turn.row.advantage)}`)] : null),
    turn.row ? derivation(step, turn.row) : null);
}

function callOf(call) {
  const name = call.function.split(":").at(-1), given = JSON.stringify(call.arguments);
  const result = call.raised ? `raises ${call.raised.kind}: ${call.raised.message}` : JSON.stringify(call.value, null, 1);
  return el("details", { class: "turn call" }, el("summary", {},
    bdi(call.agent ?? "the workflow"), " calls ", bdi(name), call.raised ? " (raises)" : ""),
  el("pre", {}, harmless(given)), el("pre", {}, harmless(result ?? "null")));
}

// Turns that are in no tree, such as those of the candidates that the sampler best-of has rejected, by session.
function offPath(step, episode) {
  const sessions = new Map();
  for (const turn of episode.off_path_turns.filter((each) => (each.node ?? null) === null))
    sessions.set(turn.session, [...(sessions.get(turn.session) ?? []), turn]);
  return sessions.size ? [el("h3", {}, "Off-path turns"), ...[...sessions].map(([session, turns]) =>
    el("details", { class: "off-path" }, el("summary", {}, `Session ${session}: ${turns.length} turns`),
      turns.map((turn) => turnOf(step, turn))))] : [];
}

function show(step, chosen) {
  const what = showsFailed() ? "failed attempt" : "episode";
  if (!chosen) by("episode").replaceChildren(el("p", { class: "note" }, `No ${what} matches the filters.`));
  else if ("failure" in chosen)
    by("episode").replaceChildren(el("h3", {}, bdi(chosen.id)),
      el("p", {}, el("span", { class: "no" }, `failed: ${chosen.failure}`), ". Task ", bdi(chosen.task)), ...whole(chosen.detail));
  else showEpisode(step, chosen);
}

function showEpisode(step, episode) {
  playable(step, episode);
  const target = by("episode"), box = el("div", { "aria-live": "polite" });
  const answer = typeof episode.answer === "string" ? episode.answer : JSON.stringify(episode.answer);
  const turns = episode.effects.map((effect) => (effect.effect === "call" ? callOf(effect)
    : effect.rewards ? turnOf(step, effect) : turnOf(step, { ...effect, rewards: {}, invalid: null, session: "x" })));
  const tree = treeOf(step, episode, (picked) => {
    box.replaceChildren(...picked.map((turn) => turnOf(step, turn)));
    for (const each of target.querySelectorAll(".turn.chosen")) each.classList.remove("chosen");
    for (const turn of picked)
      for (const each of target.querySelectorAll(".path .turn"))
        if (each.dataset.turn === `${turn.session}-${turn.index}`) each.classList.add("chosen");
    box.scrollIntoView({ block: "nearest" });
  });
  target.replaceChildren(
    el("h3", {}, bdi(episode.id)),
    el("p", {}, el("span", { class: episode.success ? "yes" : "no" }, episode.success ? "success" : "no success"),
      `, score ${number(episode.score)}${episode.finished ? "" : ", unfinished"}. Task `, bdi(episode.task.id)),
    folded("Task data", JSON.stringify(episode.task, null, 1), false),
    ...[credits(step, episode), tree, tree ? box : null].filter(Boolean),
    el("h3", {}, tree ? "The path of this episode" : "Conversation"), el("div", { class: "path" }, turns),
    el("div", {}, "Answer: ", whole(answer ?? "none")), ...offPath(step, episode));
}

// Sets the slider to the shown step among those that can be shown now.
function updateSlider() {
  const known = shownSteps(view.run, view.kind), at = known.indexOf(view.step), slider = by("f-step");
  slider.max = Math.max(known.length - 1, 0);
  slider.disabled = known.length < 2;
  slider.value = at;
  by("f-step-text").textContent = known.length
    ? `${view.step} (${at + 1} of ${known.length} shown, ${app.runs[view.run].stored[view.kind].length} stored)` : "none stored";
  slider.setAttribute("aria-valuetext", known.length ? `step ${view.step}` : "none stored");
}

// Shows a message in place of the episodes of a step.
function clear(message) {
  by("left-out").textContent = by("count").textContent = "";
  for (const id of ["list", "tasks"]) by(id).replaceChildren();
  by("more").hidden = true;
  by("episode").replaceChildren(message);
}

async function episodes(keepTask) {
  const ticket = ++view.asked, run = app.runs[view.run], known = shownSteps(view.run, view.kind);
  if (known.length && !known.includes(view.step)) view.step = known.at(-1);
  updateSlider();
  if (!known.length) {
    const key = view.kind === "train" ? "marl.run.keep_journals" : "marl.rollout.keep_episodes";
    clear(el("p", { class: "note" }, `No episodes of this kind are stored (${key}).`));
    return;
  }
  let step;
  view.bare = view.kind === "train" && !run.rows.includes(view.step);
  try { step = await loadStep(view.run, view.kind, view.step); } catch (error) {
    if (ticket === view.asked) clear(el("p", { class: "error" }, `Step ${view.step} cannot be shown: ${error.message}`));
    return;
  }
  if (ticket !== view.asked) return;  // another step was chosen meanwhile
  const stored = run.stored[view.kind].length, omitted = stored - known.length;
  by("left-out").textContent = [
    omitted ? `${omitted} of ${stored} stored steps are left out of this file: it has ${known.length} at equal distances.` : "",
    step.left_out ? `${step.left_out} episodes of this step are left out: the file has those of the first tasks.` : "",
    step.failures_left_out ? `${step.failures_left_out} failed attempts of this step are left out.` : "",
    step.problem ?? ""].filter(Boolean).join(" ");
  by("tasks").replaceChildren(...[...new Set(step.episodes.map((each) => each.task.id))].slice(0, 200)
    .map((task) => el("option", { value: task })));
  const found = list(step);
  const same = found.find((each) => keyOf(step, each) === view.chosen)
    ?? found.find((each) => taskOf(each) === keepTask) ?? found[0];
  view.chosen = same ? keyOf(step, same) : null;
  view.task = same ? taskOf(same) : keepTask;
  list(step);
  show(step, same);
}
