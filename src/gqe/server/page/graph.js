// Neighbour weights as an SVG graph: the query in the middle, two rings around it.

import { thumbnail } from "./api.js";

const SPACE = "http://www.w3.org/2000/svg";
// A phone shows larger nodes, nearer to each other.
const NARROW = matchMedia("(max-width: 48rem)");
const SIZE = NARROW.matches ? 640 : 900;
const RADII = NARROW.matches ? [0, 155, 285] : [0, 200, 380];
const SIDES = [96, 72, 50];

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Angles: the inner ring evenly, the outer ring near the inner nodes that they are neighbours of.
function layout(nodes, edges) {
  const angle = new Map();
  const inner = nodes.map((node, i) => ({ ...node, i })).filter((node) => node.hop === 1);
  inner.forEach((node, place) => angle.set(node.i, (2 * Math.PI * place) / inner.length - Math.PI / 2));
  const outer = nodes.map((node, i) => ({ ...node, i })).filter((node) => node.hop === 2);
  const wanted = outer.map((node) => {
    let x = 0;
    let y = 0;
    for (const edge of edges) {
      if (edge.target !== node.i || !angle.has(edge.source)) continue;
      x += Math.cos(angle.get(edge.source)) * Math.abs(edge.weight);
      y += Math.sin(angle.get(edge.source)) * Math.abs(edge.weight);
    }
    return { i: node.i, angle: Math.atan2(y, x) };
  });
  wanted.sort((a, b) => a.angle - b.angle);
  // Evenly, rotated so that they lie near their wanted angles.
  const step = (2 * Math.PI) / Math.max(1, wanted.length);
  let x = 0;
  let y = 0;
  wanted.forEach((each, place) => {
    x += Math.cos(each.angle - place * step);
    y += Math.sin(each.angle - place * step);
  });
  const turn = Math.atan2(y, x);
  wanted.forEach((each, place) => angle.set(each.i, turn + place * step));
  return nodes.map((node, i) => ({
    x: SIZE / 2 + RADII[node.hop] * Math.cos(angle.get(i) ?? 0),
    y: SIZE / 2 + RADII[node.hop] * Math.sin(angle.get(i) ?? 0),
  }));
}

export function draw(graph, { hasPictures, queryPicture, nameOf, act }) {
  const at = layout(graph.nodes, graph.edges);
  const largest = Math.max(1e-9, ...graph.edges.map((edge) => Math.abs(edge.weight)));
  const lines = graph.edges.map((edge) =>
    svg("line", {
      x1: at[edge.source].x,
      y1: at[edge.source].y,
      x2: at[edge.target].x,
      y2: at[edge.target].y,
      "stroke-width": 1 + (12 * Math.abs(edge.weight)) / largest,
      class: `${edge.source === 0 ? "near" : "far"}${edge.weight < 0 ? " negative" : ""}`,
    }),
  );
  const nodes = graph.nodes.map((node, i) => nodeOf(node, at[i], hasPictures, queryPicture, nameOf, act));
  return svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": `${graph.nodes.length - 1} items around the query` },
    svg("g", { "aria-hidden": "true" }, ...lines),
    ...nodes,
  );
}

function nodeOf(node, at, hasPictures, queryPicture, nameOf, act) {
  const side = SIDES[node.hop];
  const half = side / 2;
  const group = svg("g", { class: `node hop-${node.hop}`, transform: `translate(${at.x} ${at.y})` });
  group.append(svg("rect", { class: "ring", x: -half, y: -half, width: side, height: side, rx: 8 }));
  const image = svg("image", { x: 3 - half, y: 3 - half, width: side - 6, height: side - 6 });
  image.setAttribute("preserveAspectRatio", "xMidYMid slice");
  const show = (address) => address && image.setAttribute("href", address);
  if (node.hop === 0) show(queryPicture);
  else if (hasPictures) thumbnail(node.id, 160).then(show, () => {});
  const name = node.hop === 0 ? "query" : nameOf(node.id);
  const short = name.length > 13 ? `${name.slice(0, 12)}…` : name;
  if (!hasPictures || (node.hop === 0 && !queryPicture)) group.append(svg("text", { y: 4 }, short));
  group.append(image);
  if (node.hop === 0) {
    group.setAttribute("role", "img");
    group.setAttribute("aria-label", "the query");
    return group;
  }
  const label = `${name}, hop ${node.hop}, weight ${node.weight.toFixed(3)}; search with it`;
  group.append(svg("title", {}, label));
  group.setAttribute("role", "button");
  group.setAttribute("tabindex", "0");
  group.addEventListener("click", () => act(node.id));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act(node.id);
  });
  return group;
}
