// The tree that a sampler has built for a task: nodes coloured by value, the chosen path marked.
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The reward of the turn's row; without stored rows its team reward, the score of the state that it leads to.
const valueOf = (turn) => (turn.row ? turn.row.reward : turn.rewards.team ?? null);

// The tree of a session: its episodes are the paths to its leaves and share turns; this episode's path is the chosen one.
// A row of several joint nodes names all of them, as "n0+n1", and their parents in the same order.
function treeNodes(step, episode) {
  const nodes = new Map(), path = turnsOf(episode), seen = new Set();
  const session = step.episodes.filter((other) => other.uid === episode.uid && other.session === episode.session);
  for (const turn of session.flatMap((other) => [...turnsOf(other), ...other.off_path_turns])) {
    const place = `${turn.session} ${turn.index}`;
    if (turn.transition || (turn.node ?? null) === null || seen.has(place)) continue;
    seen.add(place);
    const parents = (turn.parent ?? "").split("+");
    turn.node.split("+").forEach((name, at) => {
      const key = `${turn.session} ${name}`;
      if (!nodes.has(key))
        nodes.set(key, { turns: [], chosen: false, children: [], parent: `${turn.session} ${parents[at] ?? parents[0]}` });
      nodes.get(key).turns.push(turn);
    });
  }
  for (const turn of path) if (turn.node && !turn.transition && !turn.node.includes("+")) nodes.get(`${turn.session} ${turn.node}`).chosen = true;
  for (let node = nodes.get(`${episode.session} ${episode.leaf}`); node; node = nodes.get(node.parent)) node.chosen = true;
  const roots = [];
  for (const node of nodes.values()) (nodes.get(node.parent)?.children ?? roots).push(node);
  return { nodes: [...nodes.values()], roots };
}

// Depth is the column; leaves are rows in order, and a parent is at the middle of its children. Without recursion.
function placeNodes(roots) {
  const order = [], stack = roots.map((node) => [node, 0]).reverse();
  let row = 0;
  while (stack.length) {
    const [node, depth] = stack.pop();
    node.x = depth;
    order.push(node);
    for (const child of [...node.children].reverse()) stack.push([child, depth + 1]);
  }
  for (const node of order) if (!node.children.length) node.y = row++;
  for (const node of order.reverse())
    if (node.children.length) node.y = (node.children[0].y + node.children.at(-1).y) / 2;
  return row;
}

function treeOf(step, episode, choose) {
  const { nodes, roots } = treeNodes(step, episode);
  if (!nodes.length) return null;
  const rows = placeNodes(roots), wide = 110, high = 26;
  const values = nodes.map((node) => valueOf(node.turns[0])).filter(Number.isFinite);
  const low = Math.min(...values), top = Math.max(...values);
  const share = (value) => (top > low ? (value - low) / (top - low) : 0);
  const colourOf = (value) => Number.isFinite(value) ? `hsl(${220 - 220 * share(value)} 75% 50%)` : "var(--line)";
  const legend = !values.length ? "values unknown" : top > low ? `value, blue ${number(low)} to red ${number(top)}` : `value, all ${number(low)}`;
  const width = (Math.max(...nodes.map((node) => node.x)) + 1) * wide + 30, height = rows * high + 20;
  const at = (node) => [node.x * wide + 24, node.y * high + 24];
  const edges = [], marks = [];
  for (const node of nodes) {
    const [x, y] = at(node), turn = node.turns[0], value = valueOf(turn);
    for (const child of node.children) {
      const [cx, cy] = at(child), path = node.chosen && child.chosen;
      edges.push(svg("path", { d: `M${x} ${y} C${x + 50} ${y} ${cx - 50} ${cy} ${cx} ${cy}`, fill: "none",
        stroke: path ? "var(--ink)" : "var(--line)", "stroke-width": path ? 4 : 1.5 }));
    }
    const says = harmless(`${node.chosen ? "on the path of this episode, " : ""}${turn.agent}, value ${number(value)}: ${turn.action.slice(0, 80)}`);
    const mark = svg("g", { class: "node", tabindex: "0", role: "button", "aria-pressed": "false", "aria-label": says },
      svg("title", {}, says),
      svg("circle", { cx: x, cy: y, r: 9, fill: colourOf(value), stroke: node.chosen ? "var(--ink)" : "var(--soft)",
        "stroke-width": node.chosen ? 4 : 1 }),
      svg("text", { x: x + 14, y: node.children.length ? y - 10 : y + 4 }, `${harmless(turn.agent.slice(0, 12))} ${number(value)}`));
    const pick = () => {
      for (const each of marks) each.setAttribute("aria-pressed", String(each === mark));
      choose(node.turns);
    };
    mark.addEventListener("click", pick);
    mark.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
    });
    marks.push(mark);
  }
  return el("section", { "aria-label": "Tree" }, el("h3", {}, `Tree: ${nodes.length} nodes`),
    el("p", { class: "note" }, `Colour: ${legend}. Thick: the path of this episode. Choose a node to see its turn.`),
    el("div", { class: "tree" }, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" }, ...edges, ...marks)));
}
