// Small pieces of the page.

import { thumbnail } from "./api.js";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// The picture of an item, or its name where there is none.
export function picture(id, alt, hasPictures) {
  const none = element("span", { className: "none" }, String(id));
  if (!hasPictures) return none;
  const image = element("img", { alt, loading: "lazy", decoding: "async", width: 160, height: 160 });
  image.addEventListener("error", () => image.replaceWith(none));
  thumbnail(id).then(
    (address) => (image.src = address),
    () => image.replaceWith(none),
  );
  return image;
}

export function showButton(id, label, hasPictures, act) {
  const button = element(
    "button",
    { type: "button", className: "show", title: String(id), ariaLabel: label },
    picture(id, "", hasPictures),
  );
  button.addEventListener("click", () => act(id));
  return button;
}

// How far an item moved: positive for up; null for one that was not there before.
export function badge(moved) {
  if (moved === 0) return "";
  if (moved === null) return element("span", { className: "badge up" }, "new");
  const words = `${moved > 0 ? "up" : "down"} ${Math.abs(moved)}`;
  return element(
    "span",
    { className: `badge ${moved > 0 ? "up" : "down"}`, title: words, ariaLabel: words, role: "img" },
    `${moved > 0 ? "▲" : "▼"}${Math.abs(moved)}`,
  );
}
