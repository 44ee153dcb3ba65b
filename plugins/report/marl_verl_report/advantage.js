// How the advantage of a turn was computed, with the numbers of its row.
const COMPONENT = "component: ";

// A reward component, marked if it is a credit of the algorithm.
const titled = (step, name) => (step.credits.includes(name) && name !== "credit" ? `${name} (credit)` : name);

function equation(row) {
  const filled = `(${number(row.return)} - ${number(row.baseline)}) / ${number(row.scale)}`.replace("- -", "+ ");
  const weighted = row.weight !== undefined ? ["weight * ", `${number(row.weight)} * `] : ["", ""];
  return `advantage = ${weighted[0]}(return - baseline) / scale = ${weighted[1]}${filled} = ${number(row.advantage)}`;
}

function derivation(step, row) {
  const group = step.groups[row.group], same = group.same ? Object.entries(group.same) : [];
  const shared = same.map(([name, value]) => `${name}=${value === null ? "none" : number(value)}`).join(" ");
  const members = group.members.map(([key, value, advantage]) => [key === row.key ? "this" : "", bdi(key), value, advantage]);
  const more = group.size - group.members.length;
  return el("details", { class: "why" }, el("summary", {}, `Why advantage ${number(row.advantage)}`),
    el("div", { class: "equation" }, equation(row)),
    table(null, [...Object.entries(row.columns ?? {}).map(([name, value]) => [`column: ${name}`,
      Array.isArray(value) ? `${value.length} tokens` : value]), ...row.transforms.map((each) => [each.name, each.value])]),
    row.tokens ? el("p", {}, `Advantages of the tokens, which the update uses: ${number(row.tokens[0])} to ${number(row.tokens[2])}, mean ${number(row.tokens[1])}.`) : null,
    el("p", {}, "Row ", bdi(row.key), ", compared with group ", bdi(shared || "the whole batch"), `: ${group.size} rows.`),
    table(["", "row", "return", "advantage"], members),
    more > 0 ? el("p", { class: "note" }, `${more} more rows of the group are not listed.`) : null,
    step.formulas.length ? el("pre", {}, step.formulas.join("\n")) : null);
}

// Means of the reward components over each agent's turns, the credit of the algorithm first.
function credits(step, episode) {
  const agents = new Map(), names = new Set();
  for (const turn of turnsOf(episode)) {
    const all = { ...turn.rewards };
    for (const each of turn.row?.transforms ?? [])
      if (each.name.startsWith(COMPONENT)) all[each.name.slice(COMPONENT.length)] = each.value;
    if (turn.row) all.advantage = turn.row.advantage;
    if (!agents.has(turn.agent)) agents.set(turn.agent, []);
    agents.get(turn.agent).push(all);
    Object.keys(all).forEach((name) => names.add(name));
  }
  if (!agents.size) return null;
  const rank = (name) => (step.credits.includes(name) ? 0 : name === "advantage" ? 2 : 1);
  const titles = [...names].sort((one, other) => rank(one) - rank(other));
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : "");
  const rows = [...agents].map(([agent, turns]) => [bdi(agent), turns.length,
    ...titles.map((name) => mean(turns.filter((all) => name in all).map((all) => all[name])))]);
  return el("aside", { "aria-label": "Rewards and credit of each agent" },
    el("h3", {}, `${step.credits.length ? "Credit and rewards" : "Rewards"}: mean of each agent's turns`),
    table(["agent", "turns", ...titles.map((name) => titled(step, name))], rows));
}
