"use strict";

const SECONDS = 2;
const AGES_SECONDS = 30;
const SILENT_SECONDS = 60;
const COLOURS = { Ready: "good", Hibernated: "asleep", Failed: "bad", Unavailable: "bad" };
let shown = { controlPlanes: [] };
let last = "";
const open = new Set();

// Text of tenants reaches the page by textContent alone, so that none of it is read as HTML.
function element(name, { text = "", kind = "" } = {}, ...children) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

function size(bytes) {
  if (bytes === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}

function age(time) {
  if (!time) return "";
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)}${unit}`;
  }
  return `${Math.floor(seconds)}s`;
}

function details(one) {
  const list = element("dl");
  const line = (term, text, kind) => list.append(element("dt", { text: term }), element("dd", { text, kind }));
  for (const each of one.endpoints) line(each.type, each.url);
  for (const each of one.conditions) {
    line(each.type, `${each.status} ${each.reason}${each.message ? ": " + each.message : ""}`);
  }
  for (const each of one.registrations) {
    line("Registration", `${each.name}: ${each.services.join(", ") || "no services"}${each.message ? ". " + each.message : ""}`);
  }
  const summary = element("summary", {}, element("strong", { text: one.name }));
  const made = element("details", {}, summary, list);
  made.open = open.has(one.name);
  made.addEventListener("toggle", () => (made.open ? open.add(one.name) : open.delete(one.name)));
  return made;
}

function phase(one) {
  const cell = element("td", {}, element("span", { text: one.phase, kind: COLOURS[one.phase] || "" }));
  if (one.asleep) {
    const wakes = one.asleep.nextWake ? `, wakes ${new Date(one.asleep.nextWake).toLocaleString()}` : "";
    cell.append(element("div", { kind: "muted", text: `${one.asleep.reason}, for ${age(one.asleep.since)}${wakes}` }));
  }
  if (one.migration) {
    const bar = element("progress");
    bar.max = 100;
    bar.value = one.migration.percent;
    cell.append(element("div", { kind: "moving", text: `${one.migration.step}, ${one.migration.percent} %` }), bar);
  }
  if (one.why) cell.append(element("div", { kind: "bad", text: one.why }));
  return cell;
}

function controllers(one) {
  if (!one.registrations.length) return element("td", { kind: "muted", text: "none" });
  const running = one.registrations.every((each) => each.running === "True");
  const names = one.registrations.flatMap((each) => each.services).join(", ") || "none";
  return element("td", { text: running ? names : `${names}, not running`, kind: running ? "" : "muted" });
}

function row(one) {
  return element("tr", {},
    element("td", {}, details(one)),
    phase(one),
    element("td", { text: one.home }),
    element("td", { text: one.class || "" }),
    element("td", { text: one.version || "" }),
    element("td", { kind: "number", text: one.keys === null ? "–" : one.keys.toLocaleString() }),
    element("td", { kind: "number", text: size(one.bytes) }),
    element("td", { kind: "number", text: size(one.memory) }),
    element("td", { kind: "number", text: one.rate === null ? "–" : one.rate.toFixed(1) }),
    controllers(one),
    element("td", { text: age(one.created) }));
}

function show() {
  const wanted = document.getElementById("filter").value.trim().toLowerCase();
  const text = (one) => `${one.name} ${one.phase} ${one.class || ""} ${one.home}`.toLowerCase();
  const chosen = shown.controlPlanes.filter((one) => text(one).includes(wanted));
  document.getElementById("rows").replaceChildren(...chosen.map(row));
  document.getElementById("none").hidden = shown.controlPlanes.length > 0;
  if (!shown.totals) return;
  document.getElementById("unknown").replaceChildren(
    ...shown.unknown.map((text) => element("li", { text: `not known: ${text}` })));
  const figures = [["control planes", shown.totals.controlPlanes], ...Object.entries(shown.totals.phases),
    ["keys", shown.totals.keys.toLocaleString()], ["data", size(shown.totals.bytes)], ["memory", size(shown.totals.memory)],
    ["migrating", shown.totals.migrating]];
  document.getElementById("totals").replaceChildren(...figures.map(([name, value]) =>
    element("div", {}, element("strong", { text: String(value) }), element("span", { kind: "muted", text: name }))));
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("fleet", { cache: "no-store" });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const { lookedAt, ...found } = await answer.json();
    const silent = lookedAt && Date.now() - Date.parse(lookedAt) > SILENT_SECONDS * 1000;
    const time = lookedAt ? `as of ${new Date(lookedAt).toLocaleTimeString()}` : "not read yet";
    state.textContent = silent ? `${time}; the API server does not answer since` : time;
    state.className = silent ? "bad" : "";
    // Rows that are made again lose the reader's selection and focus.
    const text = JSON.stringify(found);
    if (text !== last) {
      last = text;
      shown = found;
      document.getElementById("server").textContent = shown.server;
      show();
    }
  } catch (error) {
    state.textContent = `kplane ui does not answer (${error.message}); this is what it said last`;
    state.className = "bad";
  }
  setTimeout(refresh, SECONDS * 1000);
}

document.getElementById("filter").addEventListener("input", show);
setInterval(show, AGES_SECONDS * 1000);
refresh();
