"use strict";

// The chooser, and the list of images that a search narrows. Texts become text nodes, never HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const UNPUBLISHED =
  "While no image of that name is published: to build it in a clone, and to run what was built:";
const QUESTIONS = ["gpu", "driver", "torch", "base", "variant", "platform"];

function element(name, content, attributes) {
  const made = document.createElement(name);
  made.append(...(Array.isArray(content) ? content : [content]));
  Object.entries(attributes || {}).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function pageOf(id) {
  return element("a", id, { href: `images/${encodeURIComponent(id)}.html` });
}

// A command in a box, with a button where the browser lets pages write to its clipboard.
function commandBox(text, id) {
  const box = element("div", element("pre", element("code", text, { id })), { class: "command" });
  if (navigator.clipboard) {
    const button = element("button", "Copy", { type: "button", "aria-label": `Copy: ${text}` });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    });
    box.append(button);
  }
  return box;
}

function otherRow(other) {
  const head = [element("strong", other.works ? "or " : "not "), element("code", other.image)];
  return element("li", [...head, ": ", other.why, " (", pageOf(other.id), ")"]);
}

function othersList(title, others) {
  return others && others.length
    ? [element("h3", title), element("ul", others.map(otherRow), { id: "others" })]
    : [];
}

function answerParts(found) {
  if (found.problem) {
    // With a list of others, the sentence says the same once more: its beginning is enough.
    const said = found.others ? found.problem.split(": ", 1)[0] : found.problem;
    return [
      element("h2", "No image"),
      element("p", said, { id: "problem" }),
      ...othersList("Why not these", found.others),
    ];
  }
  return [
    element("h2", element("code", found.image, { id: "image" })),
    commandBox(found.run, "run"),
    element("p", UNPUBLISHED),
    commandBox(data.builds[found.id], "build"),
    element("p", `platform: ${found.platform}`, { id: "host" }),
    element("h3", "Why"),
    element("ul", found.why.map((reason) => element("li", reason)), { id: "why" }),
    element("p", ["All about it: ", pageOf(found.id)]),
    ...othersList("The others", found.others),
  ];
}

function question() {
  const asked = Object.fromEntries(QUESTIONS.map((name) => [name, byId(name).value.trim()]));
  return asked;
}

function answer() {
  const asked = question();
  const wrong = asked.driver !== "" && !isDriver(asked.driver);
  byId("driver").setAttribute("aria-invalid", String(wrong));
  byId("driver-problem").textContent = wrong
    ? "Give it as nvidia-smi does, such as 570.133, or its branch, such as 570."
    : "";
  const complete = asked.gpu && isDriver(asked.driver);
  const shown = complete
    ? answerParts(lookUp(data.answers, asked))
    : [element("p", "Choose a GPU and give its driver.")];
  byId("answer").replaceChildren(...shown);
  const given = QUESTIONS.filter((name) => asked[name]).map((name) => [name, asked[name]]);
  const place = given.length ? `#${new URLSearchParams(given)}` : location.pathname;
  history.replaceState(null, "", place);
}

// An address such as index.html#gpu=H100&driver=550 asks that question.
function takeAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  QUESTIONS.forEach((name) => {
    const field = byId(name);
    const value = given.get(name) || "";
    const known = field.tagName !== "SELECT" || [...field.options].some((o) => o.value === value);
    field.value = known ? value : "";
  });
}

function narrow() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = [...document.querySelectorAll("#filters select")].filter((field) => field.value);
  const proved = byId("proved").checked;
  let count = 0;
  const rows = document.querySelectorAll("#images tbody tr");
  rows.forEach((row) => {
    const fits =
      words.every((word) => row.dataset.words.includes(word)) &&
      wanted.every((field) => row.dataset[field.dataset.axis] === field.value) &&
      (!proved || row.dataset.proved === "yes");
    row.hidden = !fits;
    count += fits ? 1 : 0;
  });
  byId("count").textContent = `${count} of ${rows.length} images`;
}

takeAddress();
answer();
narrow();
byId("chooser").addEventListener("input", answer);
byId("chooser").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", narrow);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", () => {
  takeAddress();
  answer();
});
