"use strict";

// Hides the rows of a table that a search does not ask for. Without it the tables are whole.

// Words of nvidia-smi that name no model.
const SILENT = ["nvidia", "geforce", "tesla", "graphics", "device"];
// What people write together: rtx5090, rtxpro6000, 3080ti, 6000ada, sm_89.
const TOGETHER = [
  [/(rtx|gtx)(?=pro|a?[0-9])/g, "$1 "],
  [/pro(?=[0-9])/g, "pro "],
  [/([0-9]{4})(ti|super|ada)(?![a-z0-9])/g, "$1 $2"],
  [/sm_(?=[0-9])/g, "sm"],
];
const DRIVER = /(?:^|[^0-9.])([0-9]{3}(?:[.][0-9]+)+)/;
const BRANCH = /\s+r?([3-9][0-9]{2})\s*$/i;

function words(text) {
  const apart = TOGETHER.reduce((all, [found, by]) => all.replace(found, by), text.toLowerCase());
  return (apart.match(/[a-z0-9.]+/g) || []).filter((word) => !SILENT.includes(word));
}

// What clouds call their machines, and short names: pairs of a GPU and the words that mean it.
const [named] = document.querySelectorAll("[data-aliases]");
const ALIASES = Object.entries(named ? JSON.parse(named.dataset.aliases) : {}).flatMap(
  ([gpu, called]) => called.map((alias) => [gpu, words(alias)]),
);

// The words typed, with a machine type of a cloud replaced by its GPU: "p5.48xlarge" by "h100".
function translated(names, typed) {
  const parts = typed.flatMap((word) => word.split("."));
  const longest = (own) => (own.every((word) => parts.includes(word)) ? own.length : 0);
  const [gpu, alias] = ALIASES.reduce(
    (best, pair) => (longest(pair[1]) > longest(best[1]) ? pair : best),
    ["", []],
  );
  // "NVIDIA A2" is an A2, "a2-highgpu-1g" is not.
  if (names.some((name) => longest(words(name)) >= longest(alias))) return typed;
  const rest = typed.filter((word) => !word.split(".").some((part) => alias.includes(part)));
  return [...words(gpu), ...rest];
}

// The GPUs that a text names: those of which it has every word, of these the longest ("NVIDIA RTX
// 6000 Ada Generation"); else those of which it has the number, and the most words ("5090").
function meant(names, typed) {
  const best = (score) => {
    const scores = names.map((name) => score(words(name)));
    const most = Math.max(1, ...scores);
    return names.filter((_, place) => scores[place] === most);
  };
  const has = (word) => typed.includes(word);
  const whole = best((own) => (own.every(has) ? own.length : 0));
  if (whole.length) return whole;
  return best((own) => (own.some((w) => /[0-9]/.test(w) && has(w)) ? own.filter(has).length : 0));
}

function gpus(row) {
  return row.dataset.gpus.split(", ");
}

// The rows for what was typed, and the words that say nothing about them, as "80GB" of an H100.
function fitting(rows, text) {
  const names = [...new Set(rows.flatMap(gpus))];
  const typed = translated(names, words(text));
  const named = meant(names, typed);
  const own = new Set(named.flatMap(words));
  const ignored = [];
  let found = rows;
  if (named.length) found = rows.filter((row) => gpus(row).some((gpu) => named.includes(gpu)));
  for (const word of typed.filter((each) => !own.has(each))) {
    const having = found.filter((row) =>
      words(`${row.dataset.words} ${named.length ? "" : row.dataset.gpus}`).some((other) =>
        other.startsWith(word),
      ),
    );
    if (named.length && !having.length) ignored.push(word);
    else found = having;
  }
  return [found, ignored];
}

// Whether an answer is for a driver such as 570.133; without a list it is for all of them.
function serves(row, driver, known) {
  const [branch] = driver.match(/^[0-9]{3}/) || [];
  if (!branch || !row.dataset.drivers) return true;
  const place = branch < known[0] ? "older" : branch > known[known.length - 1] ? "newer" : branch;
  return row.dataset.drivers.split(" ").includes(place);
}

function narrow(form) {
  const { search, driver } = form.elements;
  const rows = [...document.getElementById(form.dataset.table).tBodies[0].rows];
  // nvidia-smi prints name and driver on one line, which may be pasted whole: "RTX 5090 570".
  let [, pasted = ""] = (driver && search.value.match(DRIVER)) || [];
  const [, last = ""] = (driver && !pasted && search.value.match(BRANCH)) || [];
  if (last && !rows.flatMap(gpus).some((gpu) => words(gpu).includes(last))) pasted = last;
  const asked = search.value.replace(new RegExp(`${pasted}(?!.*${pasted})`), "");
  const [found, ignored] = fitting(rows, asked);
  const known = driver ? [...driver.list.options].map((option) => option.value) : [];
  const version = driver ? driver.value.trim() || pasted : "";
  const shown = found.filter((row) => !driver || serves(row, version, known));
  rows.forEach((row) => (row.hidden = !shown.includes(row)));
  const without = ignored.length ? `, without regard to ${ignored.join(" ")}` : "";
  const none = "No row has that. Try the name that nvidia-smi prints, or a number such as 8.9.";
  const count = `${shown.length} of ${rows.length} rows${without}`;
  form.querySelector("output").textContent = shown.length ? count : none;
  if (driver) answer(form.querySelector("section"), shown, asked.trim(), version);
}

function copy(code) {
  getSelection().selectAllChildren(code);
  if (!document.execCommand("copy")) navigator.clipboard.writeText(code.textContent);
}

// The commands of the few rows for a GPU and a driver, and a link that asks the same again.
function answer(section, rows, gpu, driver) {
  const found = rows.filter((row) => row.dataset.command);
  section.hidden = !(gpu && driver && found.length && found.length < 4);
  section.querySelector("a").href = `?${new URLSearchParams({ gpu, driver })}`;
  const items = found.map((row) => {
    const item = document.createElement("li");
    const [code, button] = ["code", "button"].map((tag) => document.createElement(tag));
    code.textContent = row.dataset.command;
    [button.type, button.textContent] = ["button", "Copy"];
    button.addEventListener("click", () => copy(code));
    item.append(`${row.cells[1].textContent}: `, code, " ", button);
    return item;
  });
  section.querySelector("ul").replaceChildren(...(section.hidden ? [] : items));
}

const given = new URLSearchParams(location.search);
["gpu", "driver"].forEach((name) => {
  const field = document.getElementById(name);
  if (field && given.get(name)) field.value = given.get(name);
});

document.querySelectorAll("form[data-table]").forEach((form) => {
  form.hidden = false;
  form.addEventListener("input", () => narrow(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  narrow(form);
});
