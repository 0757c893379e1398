"use strict";

// Hides the rows of a table that a search does not ask for. Without it the tables are whole.

// Words of nvidia-smi that name no model.
const SILENT = ["nvidia", "geforce"];

function words(text) {
  return (text.toLowerCase().match(/[a-z0-9.]+/g) || []).filter((word) => !SILENT.includes(word));
}

function own(row) {
  const cells = [...row.cells].map((cell) => cell.textContent);
  return words([...cells, row.dataset.words].join(" "));
}

// How a row can fit what was typed, the best way first. The last one is for names of nvidia-smi,
// which say more than a model: "A100-SXM4-80GB".
const WAYS = [
  (row, typed) => typed.every((word) => own(row).includes(word)),
  (row, typed) => typed.every((word) => own(row).some((other) => other.startsWith(word))),
  (row, typed) =>
    [...row.querySelectorAll(".gpu")].some((gpu) =>
      words(gpu.textContent).every((word) => typed.includes(word)),
    ),
];

// Whether an answer is for a driver such as 570.133; without a list it is for all of them.
function serves(row, driver, known) {
  const [branch] = driver.match(/^\d{3}/) || [];
  if (!branch || !row.dataset.drivers) return true;
  const place = branch < known[0] ? "older" : branch > known[known.length - 1] ? "newer" : branch;
  return row.dataset.drivers.split(" ").includes(place);
}

function narrow(form) {
  const { search, driver } = form.elements;
  const rows = [...document.getElementById(form.dataset.table).tBodies[0].rows];
  const typed = words(search.value);
  const found = WAYS.map((fits) => rows.filter((row) => fits(row, typed)));
  const known = driver ? [...driver.list.options].map((option) => option.value) : [];
  const shown = (found.find((some) => some.length) || []).filter(
    (row) => !driver || serves(row, driver.value.trim(), known),
  );
  rows.forEach((row) => (row.hidden = !shown.includes(row)));
  form.querySelector("output").textContent = `${shown.length} of ${rows.length} rows`;
}

document.querySelectorAll("form[data-table]").forEach((form) => {
  form.hidden = false;
  form.addEventListener("input", () => narrow(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  narrow(form);
});
