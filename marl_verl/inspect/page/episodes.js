// Filters, the list of episodes, and one episode as a conversation.
const PAGE = 50;
const view = { run: 0, kind: "train", step: null, chosen: null, shown: PAGE, asked: 0 };

const turnsOf = (episode) => episode.effects.filter((effect) => effect.rewards);

function keeps(episode) {
  const turns = turnsOf(episode), agent = by("f-agent").value, task = by("f-task").value.toLowerCase();
  const own = [...turns, ...episode.off_path_turns].filter((turn) => !agent || turn.agent === agent);
  const advantages = own.filter((turn) => turn.row).map((turn) => turn.row.advantage);
  const result = by("f-result").value, invalid = by("f-invalid").value, advantage = by("f-advantage").value;
  return own.length > 0
    && (!task || [episode.task.id, episode.task.prompt, episode.id].some((text) => text.toLowerCase().includes(task)))
    && (!result || (result === "success") === episode.success)
    && (!invalid || (invalid === "invalid") === own.some((turn) => turn.invalid !== null))
    && (!advantage || (advantage === "zero" ? advantages.length > 0 && advantages.every((value) => value === 0)
      : advantages.some((value) => (advantage === "positive" ? value > 0 : value < 0))));
}

function list(step) {
  const failed = by("f-result").value === "failed";
  const found = failed ? [] : step.episodes.filter(keeps), total = step.episodes.length;
  by("count").textContent = failed ? `${step.failures.length} failed attempts`
    : `${found.length} of ${total} episodes; ${found.filter((each) => each.success).length} with success`;
  const items = found.slice(0, view.shown).map((episode) => el("li", {}, el("button", {
    type: "button", "data-id": episode.id, "aria-current": episode.id === view.chosen ? "true" : null,
    onclick: () => { stay(); view.chosen = episode.id; view.task = episode.task.id; list(step); show(step, episode); by("episode").focus({ preventScroll: true }); },
  }, el("span", { class: episode.success ? "yes" : "no" }, `${episode.success ? "✓" : "✗"} ${number(episode.score)} `),
  `${episode.id} ${episode.task.id}`)));
  if (failed) items.push(...step.failures.map((each) => el("li", {}, el("div", { class: "turn" },
    el("strong", {}, `${each.failure} `), each.id, el("br"), each.task, el("pre", {}, each.detail)))));
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

function folded(title, text, open) {
  return el("details", { open: open && text.length <= 300 }, el("summary", {}, title), el("pre", {}, text));
}

function turnOf(step, turn) {
  const observation = turn.observation.map(([role, text]) => (turn.observation.length > 1 || role !== "user"
    ? `${role}: ${text}` : text)).join("\n");
  const rewards = Object.entries(turn.rewards || {});
  const place = turn.node !== null && turn.node !== undefined ? `, node ${turn.node}` : "";
  const called = turn.called ? `, called as ${turn.called}` : "";
  return el("div", { class: "turn", who: colour(view.run, turn.agent), "data-turn": `${turn.session}-${turn.index}` },
    el("div", {}, el("span", { class: "who" }, turn.agent),
      ` slot ${turn.slot}${place}${called}${turn.length ? `, ${turn.length} tokens` : ""}`),
    folded(`Observation (${observation.length} characters)`, observation, true),
    turn.parameters ? folded("Parameters of the request", JSON.stringify(turn.parameters, null, 1), false) : null,
    el("pre", { class: "says" }, turn.action || turn.tool_calls?.length ? turn.action : "(empty)"),
    (turn.tool_calls ?? []).map((call) => folded(`calls ${call.function.name}`, call.function.arguments, false)),
    el("div", {},
      turn.invalid !== null && turn.invalid !== undefined ? el("span", { class: "chip no" }, `invalid: ${turn.invalid}`) : null,
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
    `${call.agent ?? "the workflow"} calls ${name}${call.raised ? " (raises)" : ""}`),
  el("pre", {}, given), el("pre", {}, result ?? "null"));
}

function show(step, episode) {
  const target = by("episode"), box = el("div", { "aria-live": "polite" });
  if (!episode) { target.replaceChildren(el("p", { class: "note" }, "No episode matches the filters.")); return; }
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
    el("h3", {}, episode.id),
    el("p", {}, el("span", { class: episode.success ? "yes" : "no" }, episode.success ? "success" : "no success"),
      `, score ${number(episode.score)}${episode.finished ? "" : ", unfinished"}. Task ${episode.task.id}`),
    folded("Task data", JSON.stringify(episode.task, null, 1), false),
    ...[credits(step, episode), tree, tree ? box : null].filter(Boolean),
    el("h3", {}, tree ? "The path of this episode" : "Conversation"), el("div", { class: "path" }, turns),
    el("p", {}, "Answer: ", el("code", {}, answer ?? "none")));
}

async function episodes(keepTask) {
  const ticket = ++view.asked, run = app.runs[view.run], known = shownSteps(view.run, view.kind), slider = by("f-step");
  slider.max = Math.max(known.length - 1, 0);
  slider.disabled = known.length < 2;
  if (!known.length) {
    const key = view.kind === "train" ? "marl.run.keep_journals" : "marl.rollout.keep_episodes";
    by("f-step-text").textContent = "none stored";
    by("left-out").textContent = by("count").textContent = "";
    by("list").replaceChildren();
    by("more").hidden = true;
    by("episode").replaceChildren(el("p", { class: "note" }, `No episodes of this kind are stored (${key}).`));
    return;
  }
  if (!known.includes(view.step)) view.step = known.at(-1);
  slider.value = known.indexOf(view.step);
  const stored = run.stored[view.kind].length;
  by("f-step-text").textContent = `${view.step} (${known.indexOf(view.step) + 1} of ${known.length} shown, ${stored} stored)`;
  slider.setAttribute("aria-valuetext", `step ${view.step}`);
  let step;
  view.bare = view.kind === "train" && !run.rows.includes(view.step);
  try { step = await loadStep(view.run, view.kind, view.step); } catch (error) {
    by("left-out").textContent = `Step ${view.step} cannot be shown: ${error.message}`;
    return;
  }
  if (ticket !== view.asked) return;  // another step was chosen meanwhile
  const omitted = stored - known.length;
  by("left-out").textContent = [
    omitted ? `${omitted} of ${stored} stored steps are left out of this file: it has ${known.length} at equal distances.` : "",
    step.left_out ? `${step.left_out} episodes of this step are left out: the file has those of the first tasks.` : "",
    step.problem ?? ""].filter(Boolean).join(" ");
  by("tasks").replaceChildren(...[...new Set(step.episodes.map((each) => each.task.id))].slice(0, 200)
    .map((task) => el("option", { value: task })));
  const found = list(step);
  const same = found.find((each) => each.id === view.chosen) ?? found.find((each) => each.task.id === keepTask) ?? found[0];
  view.chosen = same ? same.id : null;
  view.task = same ? same.task.id : keepTask;
  list(step);
  show(step, same);
}
