// The page: one query, its results before and after expansion, and its neighbour weights.

import * as api from "./api.js";
import { draw } from "./graph.js";

const at = (id) => document.getElementById(id);
const state = {
  about: null,
  query: null, // {id} or {vector, address, name}
  liked: new Set(),
  disliked: new Set(),
  turn: 0, // responses to earlier searches are ignored
};

function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// The picture of an item, or its name where there is none.
function picture(id, alt, hasPictures) {
  const none = element("span", { className: "none" }, String(id));
  if (!hasPictures) return none;
  const image = element("img", { alt, loading: "lazy", decoding: "async", width: 160, height: 160 });
  image.addEventListener("error", () => image.replaceWith(none));
  api.thumbnail(id).then(
    (address) => (image.src = address),
    () => image.replaceWith(none),
  );
  return image;
}

function showButton(id, label, hasPictures, act) {
  const button = element(
    "button",
    { type: "button", className: "show", title: String(id), ariaLabel: label },
    picture(id, "", hasPictures),
  );
  button.addEventListener("click", () => act(id));
  return button;
}

// How far an item moved: positive for up; null for one that was not there before.
function badge(moved) {
  if (moved === 0) return "";
  if (moved === null) return element("span", { className: "badge up" }, "new");
  const words = `${moved > 0 ? "up" : "down"} ${Math.abs(moved)}`;
  return element(
    "span",
    { className: `badge ${moved > 0 ? "up" : "down"}`, title: words, ariaLabel: words, role: "img" },
    `${moved > 0 ? "▲" : "▼"}${Math.abs(moved)}`,
  );
}

function say(text) {
  at("status").textContent = text;
}

function showError(error) {
  const shown = at("error");
  shown.textContent = error.message;
  shown.hidden = false;
  shown.scrollIntoView({ block: "nearest" });
  say("");
  if (error.status === 401) {
    at("token").hidden = false;
    at("token-text").focus();
  }
}

function method() {
  const name = at("method").value;
  const k = at("neighbors").value;
  return k && takesK(name) ? `${name}:k=${k}` : name;
}

function takesK(name) {
  return state.about.methods_with_k.includes(name);
}

function plainQuery() {
  const { query } = state;
  return query.vector ? { vectors: [query.vector] } : { ids: [query.id] };
}

// The query, combined with likes and dislikes if there are any.
function refinedQuery() {
  const { query, liked, disliked } = state;
  if (!liked.size && !disliked.size) return plainQuery();
  const own = query.vector ? { vector: query.vector } : { id: query.id };
  const example = (id) => ({ id });
  return { like: [own, ...[...liked].map(example)], dislike: [...disliked].map(example) };
}

// The first k results without the query itself, which a search by examples does not exclude.
function withoutQuery({ ids, scores }, k) {
  const kept = ids.map((id, place) => ({ id, score: scores[place] })).filter(({ id }) => id !== state.query.id);
  return { ids: kept.slice(0, k).map(({ id }) => id), scores: kept.slice(0, k).map(({ score }) => score) };
}

async function search(message = "Searching…") {
  const turn = ++state.turn;
  at("error").hidden = true;
  say(message);
  const k = Number(at("count").value);
  const rerank = at("rerank").value || null;
  const chosen = method();
  const expand = chosen !== "none";
  try {
    const begun = performance.now();
    const [before, after, graph] = await Promise.all([
      api.search({ ...plainQuery(), k, expand: false }),
      api.search({ ...refinedQuery(), k: k + 1, method: chosen, expand, rerank }).then((hits) => withoutQuery(hits, k)),
      expand ? api.explain({ ...refinedQuery(), method: chosen, first: 10, second: 3 }) : null,
    ]);
    if (turn !== state.turn) return;
    showQuery();
    showResults(before, after);
    showGraph(graph);
    say(`${after.ids.length} results in ${Math.round(performance.now() - begun)} ms. ${at("moved").textContent}`);
  } catch (error) {
    if (turn === state.turn) showError(error);
  }
}

function showQuery() {
  const { query, about } = state;
  at("query").hidden = false;
  const shown = query.vector
    ? element("img", { src: query.address, alt: "the uploaded picture" })
    : picture(query.id, "the query", about.pictures);
  at("query-picture").replaceChildren(shown);
  at("query-name").textContent = query.vector ? query.name : `Item ${query.id}`;
  showFeedback();
}

function showFeedback() {
  const { liked, disliked } = state;
  const given = liked.size || disliked.size;
  at("feedback").textContent = given
    ? `${liked.size} liked, ${disliked.size} disliked. The query becomes the mean of what you like, minus half the mean of what you do not.`
    : "Like or dislike results to refine the search.";
  at("refine").hidden = !given;
  at("forget").hidden = !given;
}

function showResults(before, after) {
  at("results").hidden = false;
  const ranks = new Map(before.ids.map((id, place) => [id, place]));
  const moves = after.ids.map((id, place) => (ranks.has(id) ? ranks.get(id) - place : null));
  const risen = moves.filter((moved) => moved === null || moved > 0).length;
  at("moved").textContent = risen ? `${risen} moved up or are new.` : "Nothing moved up.";
  at("before").replaceChildren(...before.ids.map((id, place) => card(id, place, before.scores[place], 0)));
  at("after").replaceChildren(...after.ids.map((id, place) => card(id, place, after.scores[place], moves[place])));
}

function card(id, place, score, moved) {
  const { about, liked, disliked } = state;
  const risen = moved === null || moved > 0;
  const item = element("li", { className: `card${risen ? " risen" : ""}` });
  item.dataset.id = id;
  const vote = (word, own, other) => {
    const button = element("button", { type: "button", ariaLabel: `${word} ${id}` }, word);
    button.dataset.vote = word;
    button.setAttribute("aria-pressed", own.has(id));
    button.addEventListener("click", () => {
      if (!own.delete(id)) {
        own.add(id);
        other.delete(id);
      }
      markVotes();
      showFeedback();
    });
    return button;
  };
  item.append(
    showButton(id, `Search with ${id}`, about.pictures, searchItem),
    element(
      "div",
      { className: "line" },
      element("span", { className: "rank" }, String(place + 1)),
      element("span", { className: "name", title: String(id) }, String(id)),
      badge(moved),
      element("span", { className: "score", title: "similarity" }, score.toFixed(3)),
    ),
    element("div", { className: "votes" }, vote("Like", liked, disliked), vote("Dislike", disliked, liked)),
  );
  item.classList.toggle("liked", liked.has(id));
  item.classList.toggle("disliked", disliked.has(id));
  return item;
}

function markVotes() {
  const names = new Map([...state.liked].map((id) => [String(id), "Like"]));
  for (const id of state.disliked) names.set(String(id), "Dislike");
  for (const item of document.querySelectorAll(".card")) {
    const vote = names.get(item.dataset.id);
    item.classList.toggle("liked", vote === "Like");
    item.classList.toggle("disliked", vote === "Dislike");
    for (const button of item.querySelectorAll("[data-vote]"))
      button.setAttribute("aria-pressed", button.dataset.vote === vote);
  }
}

async function showGraph(graph) {
  at("neighborhood").hidden = graph === null;
  if (graph === null) return;
  const { query, about } = state;
  let address = query.address;
  if (!query.vector && about.pictures) address = await api.thumbnail(query.id).catch(() => null);
  at("graph").replaceChildren(
    draw(graph, {
      hasPictures: about.pictures,
      queryPicture: address,
      queryName: query.vector ? "query" : String(query.id),
      act: searchItem,
    }),
  );
  at("graph").scrollLeft = (at("graph").scrollWidth - at("graph").clientWidth) / 2; // a phone shows the middle
  const rows = graph.nodes.slice(1).map((node) => {
    const button = element("button", { type: "button" }, String(node.id));
    button.addEventListener("click", () => searchItem(node.id));
    return element(
      "tr",
      {},
      element("td", {}, button),
      element("td", {}, String(node.hop)),
      element("td", {}, node.weight.toFixed(4)),
    );
  });
  at("weights").tBodies[0].replaceChildren(...rows);
}

function begin(query) {
  state.query = query;
  state.liked.clear();
  state.disliked.clear();
}

function searchItem(id) {
  begin({ id });
  at("offer").open = false;
  search(`Searching with ${id}…`).then(() => at("query").scrollIntoView({ block: "start" }));
}

async function searchPicture(file) {
  if (!file) return;
  const turn = ++state.turn;
  at("error").hidden = true;
  say("Computing the vector of the picture…");
  try {
    const vector = await api.describe(file);
    if (turn !== state.turn) return;
    if (state.query?.address) URL.revokeObjectURL(state.query.address);
    begin({ vector, address: URL.createObjectURL(file), name: file.name });
    at("offer").open = false;
    await search();
    at("query").scrollIntoView({ block: "start" });
  } catch (error) {
    if (turn === state.turn) showError(error);
  } finally {
    at("file").value = "";
  }
}

function option(value, text) {
  return element("option", { value }, text);
}

const NAMES = {
  none: "none",
  aqe: "AQE (mean)",
  aqewd: "AQEwD (decaying weights)",
  alpha: "αQE",
  "aqe-g": "AQE-G (two hops)",
  "alpha-g": "αQE-G (two hops)",
};

async function load() {
  at("error").hidden = true;
  say("Loading…");
  try {
    const about = await api.about();
    state.about = about;
    at("token").hidden = true;
    at("title").textContent = about.title;
    document.title = `Search ${about.title}`;
    at("about").textContent =
      `${about.items.toLocaleString("en")} items, ${about.dimension} dimensions, expanded by ${about.expansion}`;
    at("method").replaceChildren(
      ...about.methods.map((name) => option(name, name === "index" ? about.expansion : NAMES[name] || name)),
    );
    const ks = [4, 8, 16, 32].filter((k) => k <= about.most_neighbors);
    at("neighbors").replaceChildren(option("", "default"), ...ks.map((k) => option(k, String(k))));
    at("neighbors").disabled = !takesK(at("method").value);
    at("rerank").parentElement.hidden = !about.rerankers.length;
    at("rerank").replaceChildren(option("", "none"), ...about.rerankers.map((name) => option(name, name)));
    at("drop").hidden = !about.describes;
    at("examples").replaceChildren(
      ...about.examples.map((id) =>
        element("li", {}, showButton(id, `Search with ${id}`, about.pictures, searchItem)),
      ),
    );
    say(about.items ? "Choose a picture to begin." : "The index is empty.");
  } catch (error) {
    showError(error);
  }
}

at("method").addEventListener("change", () => {
  at("neighbors").disabled = !takesK(at("method").value);
});
for (const id of ["method", "neighbors", "rerank", "count"])
  at(id).addEventListener("change", () => {
    if (state.query) search();
  });
at("file").addEventListener("change", () => searchPicture(at("file").files[0]));
at("refine").addEventListener("click", () => search("Refining…"));
at("forget").addEventListener("click", () => {
  state.liked.clear();
  state.disliked.clear();
  search();
});
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  api.setToken(at("token-text").value.trim());
  load();
});
for (const name of ["dragover", "dragleave", "drop"])
  document.addEventListener(name, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && state.about?.describes) searchPicture(event.dataTransfer.files[0]);
  });
load();
