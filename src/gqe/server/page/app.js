// The page: one query, its results before and after expansion, and its neighbour weights. What is shown stands in the
// address, so that Back, reload and a shared link work; only an uploaded picture does not fit into it.

import * as api from "./api.js";
import { draw } from "./graph.js";

const at = (id) => document.getElementById(id);
const state = {
  about: null,
  query: null, // {id}, {text, vector} or {upload, vector, address}
  uploads: new Map(), // name: {vector, address}
  items: new Map(), // what is known of items: {metadata, label}
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

const TITLES = ["title", "name", "headline"];
const TEXTS = ["text", "content", "description", "caption", "body", "summary", "abstract"];
const LONGEST = 300;

// An item in words: a title, a text and the rest of its metadata.
function words(id) {
  const { metadata = {} } = state.items.get(id) || {};
  const first = (names) => names.find((name) => typeof metadata[name] === "string" && metadata[name]);
  const [title, text] = [first(TITLES), first(TEXTS)];
  const rest = Object.entries(metadata)
    .filter(([name, value]) => name !== title && name !== text && value !== null)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return { title: metadata[title] || "", text: metadata[text] || "", rest: rest.join(", ") };
}

const shorten = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST).trimEnd()}…` : text);

// The words of an item; its id where there are none, unless that stands beside them.
function wordsOf(id, named = true) {
  const { title, text, rest } = words(id);
  const parts = [["strong", title], ["span", shorten(text)], ["small", shorten(rest)]].filter(([, part]) => part);
  if (named && !title && !text) parts.unshift(["strong", String(id)]);
  return element("span", { className: "words" }, ...parts.map(([name, part]) => element(name, {}, part)));
}

function nameOf(id) {
  const { title, text } = words(id);
  return title || text || String(id);
}

// The picture of an item, or what is known of it in words.
function picture(id, alt) {
  const none = wordsOf(id);
  if (!state.about.pictures) return none;
  const image = element("img", { alt, loading: "lazy", decoding: "async", width: 160, height: 160 });
  image.addEventListener("error", () => image.replaceWith(none));
  api.thumbnail(id).then(
    (address) => (image.src = address),
    () => image.replaceWith(none),
  );
  return image;
}

function showButton(id) {
  const button = element("button", { type: "button", className: "show", title: "Search with this" });
  button.append(picture(id, `Search with ${nameOf(id)}`));
  button.addEventListener("click", () => searchItem(id));
  return button;
}

// How far an item moved: positive for up; null for one that was not there before.
function badge(moved) {
  if (moved === 0) return "";
  if (moved === null) return element("span", { className: "badge", title: "not among the results before" }, "new");
  const says = `${moved > 0 ? "up" : "down"} ${Math.abs(moved)}`;
  return element(
    "span",
    { className: "badge", title: says, ariaLabel: says, role: "img" },
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
  writeAddress();
  const { query } = state;
  const k = Number(at("count").value);
  const rerank = at("rerank").value || null;
  const chosen = method();
  const expand = chosen !== "none";
  try {
    const begun = performance.now();
    if (query.text && !query.vector) query.vector = await api.embed(query.text);
    const [before, after, graph] = await Promise.all([
      api.search({ ...plainQuery(), k, expand: false }),
      api.search({ ...refinedQuery(), k: k + 1, method: chosen, expand, rerank }).then((hits) => withoutQuery(hits, k)),
      expand ? api.explain({ ...refinedQuery(), method: chosen, first: 10, second: 3 }) : null,
    ]);
    const took = Math.round(performance.now() - begun);
    const around = graph ? graph.nodes.slice(1).map(({ id }) => id) : [];
    await learn([...(query.id === undefined ? [] : [query.id]), ...before.ids, ...after.ids, ...around]);
    if (turn !== state.turn) return;
    showQuery();
    const found = showResults(before, after, expand, expand || rerank || state.liked.size || state.disliked.size);
    showGraph(graph);
    say(`${after.ids.length} results in ${took} ms. ${found}`);
  } catch (error) {
    if (turn === state.turn) showError(error);
  }
}

// Ask for what is known of items, once.
async function learn(ids) {
  const unknown = [...new Set(ids)].filter((id) => !state.items.has(id));
  if (!unknown.length) return;
  const items = await api.describeItems(unknown).catch(() => []); // one of them may just have been removed
  for (const { id, metadata, label } of items) state.items.set(id, { metadata, label });
}

function queryName() {
  const { query } = state;
  if (query.text) return `“${query.text}”`;
  return query.upload || `Item ${query.id}`;
}

function showQuery() {
  const { query } = state;
  at("query").hidden = false;
  let shown = null;
  if (query.upload) shown = element("img", { src: query.address, alt: "the uploaded picture" });
  else if (state.about.pictures || (query.id !== undefined && nameOf(query.id) !== String(query.id)))
    shown = query.text ? null : picture(query.id, "the query");
  at("query-picture").hidden = !shown;
  at("query-picture").replaceChildren(...(shown ? [shown] : []));
  at("query-name").textContent = queryName();
  document.title = `${queryName()} – ${state.about.title}`;
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

// Whether a result is right: null where that is not known.
function isRight(id) {
  const own = state.items.get(state.query.id)?.label ?? null;
  return own === null ? null : state.items.get(id)?.label === own;
}

// Both lists, or one if nothing is changed; returns what they say in words.
function showResults(before, after, expand, differs) {
  at("results").hidden = false;
  at("results").classList.toggle("alone", !differs);
  at("before-list").hidden = !differs;
  const ranks = new Map(before.ids.map((id, place) => [id, place]));
  const moves = after.ids.map((id, place) => (ranks.has(id) ? ranks.get(id) - place : null));
  const risen = moves.filter((moved) => moved === null || moved > 0).length;
  const moved = risen ? `${risen} moved up or are new.` : "Nothing moved up.";
  const off = "Expansion is off: this is the search with the query itself.";
  at("after-title").textContent = expand ? "After expansion" : "Without expansion";
  at("before-hint").textContent = `Search with the query itself. ${rightOf(before.ids)}`;
  at("after-hint").textContent = `${expand ? moved : differs ? `Expansion is off. ${moved}` : off} ${rightOf(after.ids)}`;
  at("before").replaceChildren(...before.ids.map((id, place) => card(id, place, before.scores[place], 0)));
  at("after").replaceChildren(
    ...after.ids.map((id, place) => card(id, place, after.scores[place], differs ? moves[place] : 0)),
  );
  return at("after-hint").textContent;
}

function rightOf(ids) {
  const known = ids.map(isRight).filter((right) => right !== null);
  return known.length ? `${known.filter(Boolean).length} of ${known.length} right.` : "";
}

function mark(right) {
  const says = right ? "right" : "wrong";
  return element("span", { className: "mark", title: says, ariaLabel: says, role: "img" }, right ? "✓" : "✗");
}

function card(id, place, score, moved) {
  const { about, liked, disliked } = state;
  const right = isRight(id);
  const item = element("li", { className: `card${right === null ? "" : right ? " right" : " wrong"}` });
  item.dataset.id = id;
  const vote = (word, own, other) => {
    const button = element("button", { type: "button", ariaLabel: `${word} ${nameOf(id)}` }, word);
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
  const { title, text, rest } = words(id);
  const below = about.pictures && (title || text || rest) ? [wordsOf(id, false)] : [];
  const named = about.pictures || title || text;
  item.append(
    showButton(id),
    element(
      "div",
      { className: "line" },
      element("span", { className: "rank" }, `${place + 1}.`),
      element("span", { className: "name" }, named ? String(id) : ""),
    ),
    element(
      "div",
      { className: "line" },
      right === null ? "" : mark(right),
      badge(moved),
      element("span", { className: "score", title: "similarity" }, score.toFixed(3)),
    ),
    ...below,
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
  let { address = null } = query;
  if (query.id !== undefined && about.pictures) address = await api.thumbnail(query.id).catch(() => null);
  at("graph").replaceChildren(
    draw(graph, { hasPictures: about.pictures, queryPicture: address, nameOf, act: searchItem }),
  );
  const rows = graph.nodes.slice(1).map((node) => {
    const button = element("button", { type: "button" }, shorten(nameOf(node.id)));
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

function begin(query, message) {
  state.query = query;
  state.liked.clear();
  state.disliked.clear();
  at("offer").open = false;
  return search(message).then(() => at("query").scrollIntoView({ block: "start" }));
}

function searchItem(id) {
  at("id").value = id;
  begin({ id }, `Searching with ${nameOf(id)}…`);
}

async function searchPicture(file) {
  if (!file) return;
  const turn = ++state.turn;
  at("error").hidden = true;
  say("Computing the vector of the picture…");
  try {
    const vector = await api.describe(file);
    if (turn !== state.turn) return;
    state.uploads.set(file.name, { vector, address: URL.createObjectURL(file) });
    await begin({ upload: file.name, ...state.uploads.get(file.name) });
  } catch (error) {
    if (turn === state.turn) showError(error);
  } finally {
    at("file").value = "";
  }
}

const SETTINGS = ["method", "neighbors", "rerank", "count"];

// An id as the service has it; null for a text where ids are numbers.
function idOf(text) {
  if (state.about.id_kind !== "int") return text;
  return /^[0-9]+$/.test(text.trim()) ? Number(text) : null;
}

function writeAddress() {
  const { query, liked, disliked } = state;
  const now = new URLSearchParams();
  for (const name of ["id", "text", "upload"]) if (query[name] !== undefined) now.set(name, query[name]);
  for (const name of SETTINGS) if (at(name).value !== defaultOf(name)) now.set(name, at(name).value);
  for (const id of liked) now.append("like", id);
  for (const id of disliked) now.append("dislike", id);
  if (`?${now}` !== location.search) history.pushState(null, "", `?${now}`);
}

function defaultOf(name) {
  return name === "count" ? "12" : at(name).options[0].value;
}

// Show what the address says.
function readAddress() {
  const wanted = new URLSearchParams(location.search);
  for (const name of SETTINGS) {
    at(name).value = wanted.get(name) ?? defaultOf(name);
    if (!at(name).value) at(name).value = defaultOf(name); // not offered here
  }
  at("neighbors").disabled = !takesK(at("method").value);
  state.liked = new Set(wanted.getAll("like").map(idOf));
  state.disliked = new Set(wanted.getAll("dislike").map(idOf));
  const [id, text, upload] = ["id", "text", "upload"].map((name) => wanted.get(name));
  at("id").value = id ?? "";
  at("text").value = text ?? "";
  state.query = null;
  if (id !== null && idOf(id) !== null) state.query = { id: idOf(id) };
  else if (text && state.about.embeds) state.query = { text };
  else if (state.uploads.has(upload)) state.query = { upload, ...state.uploads.get(upload) };
  at("offer").open = state.query === null;
  if (state.query) return search();
  state.turn++;
  for (const part of ["query", "results", "neighborhood"]) at(part).hidden = true;
  document.title = `Search ${state.about.title}`;
  say(
    upload
      ? `The picture ${upload} is not part of this address; choose it again.`
      : state.about.items
        ? "Choose an example to begin."
        : "The index is empty.",
  );
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
    at("by-text").hidden = !about.embeds;
    await learn(about.examples);
    const inWords = !about.pictures && about.examples.some((id) => nameOf(id) !== String(id));
    document.body.classList.toggle("in-words", inWords);
    at("examples").replaceChildren(...about.examples.map((id) => element("li", {}, showButton(id))));
    await readAddress();
  } catch (error) {
    showError(error);
  }
}

at("method").addEventListener("change", () => {
  at("neighbors").disabled = !takesK(at("method").value);
});
for (const id of SETTINGS)
  at(id).addEventListener("change", () => {
    if (state.query) search();
  });
at("file").addEventListener("change", () => searchPicture(at("file").files[0]));
at("by-id").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = idOf(at("id").value);
  if (id === null) showError(new Error("Ids are whole numbers here."));
  else if (id !== "") searchItem(id);
});
at("by-text").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (text) begin({ text });
});
window.addEventListener("popstate", () => state.about && readAddress());
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
