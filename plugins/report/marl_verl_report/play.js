// A served page: the run's policies continue an edited act of a stored episode, or play held-out tasks; a person may act.
const START = "held-out tasks from their start";
const game = { episode: null, acts: [], question: null, busy: false };

// Offers the acts of the shown episode, if it is one of the run.
function playable(step, episode) {
  const acts = step.kind ? episode.effects.filter((effect) => effect.effect === "act") : [];
  Object.assign(game, { episode: episode.id, acts });
  options(by("p-act"), [["", START], ...acts.map((act, at) => [String(at), `${act.agent}:${act.slot} edited`])], "");
  prefill();
}

const editedAct = () => (by("p-act").value === "" ? null : game.acts[Number(by("p-act").value)]);

function prefill() {
  if (!game.question) by("p-text").value = editedAct()?.action ?? "";
  updateForm();
}

function updateForm() {
  const { question, busy } = game, seconds = app.runs[0].act_seconds;
  by("p-settings").disabled = busy;
  by("p-says").hidden = !question && !editedAct();
  by("p-do").textContent = question ? "Act" : "Play";
  by("p-do").disabled = busy && !question;
  by("p-leave").hidden = !question;
  by("p-question").replaceChildren(...(question ? [el("strong", {}, seconds ? `Your turn: within ${seconds} s` : "Your turn"),
    ...question.observation.map(([role, text]) => el("pre", {}, harmless(`${role}: ${text}`)))] : []));
}

async function post(path, content) {
  const reply = await fetch(path, { method: "POST", body: JSON.stringify(content) }), value = await reply.json();
  if (!reply.ok) throw new Error(value.error);
  return value;
}

function says(...parts) {
  by("p-result").replaceChildren(...parts);
}

// The mean of each reward after the edit, and the difference to the recorded act.
function differencesOf([recorded, edited]) {
  return table(["agent, component", "edited", "minus recorded", "95 % interval"],
    Object.entries(edited.rewards).map(([name, value]) => {
      const { mean, interval } = recorded.difference[name] ?? {};
      return [name, value, mean ?? "unknown", interval ? `${number(interval[0])} to ${number(interval[1])}` : "one pair only"];
    }));
}

async function play() {
  const act = editedAct(), edit = act ? [game.episode, `${act.agent}:${act.slot}`, by("p-text").value] : null;
  const asked = { number: Number(by("p-number").value), edit, person: by("p-person").value || null };
  game.busy = true;
  updateForm();
  says("Playing ...");
  try {
    const { pairings, file, step } = await post("play", asked);
    const first = step.episodes.find((episode) => episode.uid === "edited") ?? step.episodes[0] ?? step.failures[0];
    view.chosen = first ? keyOf(step, first) : null;
    list(step);
    show(step, first);
    by("left-out").textContent = `Below is what was played, stored in ${file}. Choose a step to see those of the run.`;
    says(edit ? `${edit[1]} of episode ${edit[0]} says ${edit[2]}` : START, pairings ? differencesOf(pairings) : "");
  } catch (error) {
    says(el("span", { class: "error" }, error.message));
  }
  game.busy = false;
  updateForm();
}

async function answers(text) {
  try { await post("answer", [game.question.number, text]); } catch (error) { says(el("span", { class: "error" }, error.message)); }
}

function askedFor(question) {
  game.question = question;
  by("p-text").value = "";
  updateForm();
  if (question) by("p-text").focus();
}

function startPlaying(source) {
  by("play").hidden = false;
  options(by("p-person"), [["", "nobody"], ...app.runs[0].policies.map((name) => [name, name])], "");
  by("p-act").addEventListener("input", prefill);
  by("play").addEventListener("input", stay);
  by("play").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!game.question) play();
    else if (by("p-text").value) answers(by("p-text").value);
  });
  by("p-leave").addEventListener("click", () => answers(null));
  source.addEventListener("question", (event) => askedFor(JSON.parse(event.data)));
  updateForm();
}
