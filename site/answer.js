"use strict";

// What `./inv pick` would say, from its own table: the twin of look_up() in
// torch_images/publish/answers.py. A test compares the two for every cell.

function numbers(version) {
  return version.split(".").map(Number);
}

function atMost(left, right) {
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    if (left[i] !== right[i]) return left[i] < right[i];
  }
  return left.length <= right.length;
}

// No value is looked into, and no other brace is touched.
function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
}

// What `pick.find_driver` takes: a version such as 570.133, or a branch such as 570.
function isDriver(text) {
  return /^[0-9]{3}(\.[0-9]{1,3}(\.[0-9]{1,2})?)?$/.test(text);
}

function lookUp(answers, asked) {
  const words = answers.words;
  const held = answers.gpus.find((entry) => entry.asked === asked.gpu);
  if (held.problem) return { problem: held.problem };
  const own = held.platform;
  const host = asked.platform || own || answers.defaults.platform;
  if (own && host !== own)
    return { problem: fill(words.foreign, { gpu: held.name, platform: host, own }) };
  const { problem, caveat } = answers.platforms[host];
  if (problem) return { problem };
  const { marks, branches } = answers.drivers;
  const version = asked.driver.includes(".")
    ? asked.driver
    : branches[asked.driver] || `${asked.driver}.00`;
  const branch = version === asked.driver ? "" : asked.driver;
  const parts = numbers(version);
  const row = marks.findLastIndex((mark) => atMost(numbers(mark), parts));
  const kind = answers.kinds[held.kind];
  const variant = asked.variant || answers.defaults.variant;
  const base = asked.base || answers.defaults.base;
  const images = answers.choices[answers.images[host][kind.arch][variant][base][asked.torch || ""]];
  const arch = { arch: kind.arch, sm: kind.sm };
  if (images.problem) return { problem: fill(images.problem, arch) };
  const names = { gpu: held.name, driver: version, branch: String(parts[0]) };
  const suggestions = answers.rows[kind.verdicts[host][row]]
    .filter((verdict) => verdict.cuda in images)
    .map((verdict) => {
      const id = fill(images[verdict.cuda].id, arch);
      return {
        image: fill(images[verdict.cuda].image, arch),
        id,
        works: verdict.works,
        why: fill(verdict.reason, names),
        proof: answers.proofs[id],
      };
    });
  const taken = branch ? fill(words.taken, { branch, driver: version }) : "";
  if (!suggestions.length || !suggestions[0].works) {
    const reasons = suggestions
      .map((other) => fill(words.refused, { image: other.image, reason: other.why }))
      .join(words.separator);
    const nothing = fill(words.nothing, { ...names, reasons: reasons || words.untargeted });
    return { problem: taken ? `${nothing}; ${taken}` : nothing, others: suggestions };
  }
  const [best, ...others] = suggestions;
  return {
    gpu: held.name,
    capability: kind.capability,
    geforce: kind.geforce,
    driver: version,
    branch,
    platform: host,
    image: best.image,
    id: best.id,
    run: fill(words.run, { image: best.image }),
    proof: best.proof,
    why: [
      fill(kind.serving, names),
      best.why,
      ...(taken ? [taken] : []),
      fill(words.proof, { proof: best.proof }),
      ...(caveat ? [caveat] : []),
    ],
    others,
  };
}
