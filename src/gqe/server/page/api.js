// Requests to the service.

let token = sessionStorage.getItem("gqe-token") || "";

export function setToken(text) {
  token = text;
  sessionStorage.setItem("gqe-token", text);
}

export class RequestError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new RequestError(0, "The service cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let detail = `The service answered ${response.status}.`;
  try {
    detail = (await response.json()).detail || detail;
  } catch {
    // not a response of the service itself, but of a proxy
  }
  throw new RequestError(response.status, detail);
}

const post = async (path, content) =>
  (
    await request(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(content),
    })
  ).json();

export const about = async () => (await request("/v1/about")).json();
export const search = async (content) => (await post("/v1/search", content)).results[0];
export const explain = (content) => post("/v1/explain", content);

export const embed = async (text) => (await post("/v1/embed", { text })).vector;
export const describeItems = async (ids) => (await post("/v1/items/describe", { ids })).items;

export async function describe(file) {
  const form = new FormData();
  form.append("picture", file);
  return (await (await request("/v1/describe", { method: "POST", body: form })).json()).vector;
}

// Addresses of thumbnails. With a token they are fetched: an <img> cannot send one.
const fetched = new Map();

export function thumbnail(id, side = 320) {
  const path = `/v1/picture?id=${encodeURIComponent(id)}&side=${side}`;
  if (!token) return Promise.resolve(path);
  if (!fetched.has(path)) {
    fetched.set(
      path,
      request(path)
        .then((response) => response.blob())
        .then((blob) => URL.createObjectURL(blob)),
    );
  }
  return fetched.get(path);
}
