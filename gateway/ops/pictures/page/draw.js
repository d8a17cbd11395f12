// The sections of the page. Text comes in by `textContent` only: names, reasons and errors are others' words.

import * as charts from "./charts.js";
import { clock, count, percent, seconds } from "./words.js";

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; a string is text. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "onclick") made.addEventListener("click", value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Sets text where it differs: what stays is neither painted nor read out again. */
export function text(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/** As `text`, with what is between backticks as code. */
export function code(element, words) {
  if (element.words === words) return;
  element.words = words;
  element.replaceChildren(...words.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part)));
}

/** Keeps one child for each item, by key, in order. Children stay the same elements, so focus and selection do. */
function keyed(parent, items, keyOf, make, update, gone) {
  const old = new Map([...parent.children].map((child) => [child.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = old.get(key);
    if (child) old.delete(key);
    else { child = make(item); child.key = key; }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of old.values()) { gone?.(child); child.remove(); }
}

const since = (sign, at) => (sign.since == null ? "" : `since ${clock(sign.since)}, ${seconds(at - sign.since)}`);

let spoken = "";

export function top(picture) {
  const { headline, signs = [], at } = picture;
  $("top").dataset.level = headline.level;
  text($("headline").lastElementChild, headline.text);
  code($("advice"), [headline.do, since(headline, at)].filter(Boolean).join("  ·  "));
  const others = signs.filter((sign) => sign.key !== headline.key);
  keyed($("signs"), others, (sign) => sign.key,
    () => h("li", {}, h("i", { class: "dot" }), h("span"), h("span", { class: "ago" })),
    (row, sign) => {
      row.dataset.level = sign.level;
      text(row.children[1], sign.text);
      text(row.children[2], since(sign, at));
      row.title = sign.do ?? "";
    });
  if (spoken !== headline.key + headline.level) { // the sentence changes twice a second; what it says does not
    spoken = headline.key + headline.level;
    text($("spoken"), headline.text);
  }
  document.title = `${headline.level === "bad" || headline.level === "warn" ? "▲ " : ""}kvgate`;
  $("mode").hidden = picture.mode !== "observe";
  text($("version"), `kvgate ${picture.version}`);
}

// Engines

const LEVELS = { up: "good", trial: "busy", starting: "busy", scaling: "busy", asleep: "busy", draining: "busy", suspect: "warn" };
const PARTS = [["running", "held by running requests"], ["shared", "shared prefixes"], ["foreign", "foreign"], ["promised", "promised by the forecast"]];
const levelOf = (endpoint) => LEVELS[endpoint.state] ?? "bad";

export function engines(picture, act) {
  keyed($("engines"), picture.endpoints ?? [], (one) => one.id, () => engine(act), (card, one) => updateEngine(card, one, picture),
    (card) => charts.remove(card.at.plot));
}

function engine(act) {
  const at = { id: h("b"), of: h("span", { class: "of" }), state: h("span", { class: "chip" }), button: h("button", { type: "button" }),
    why: h("p", { class: "why" }), parts: h("div", { class: "parts" }, ...PARTS.map(([name]) => h("i", { class: name }))),
    low: h("div", { class: "fence" }, h("span")), high: h("div", { class: "fence" }, h("span")), facts: h("dl", { class: "facts" }), plot: h("div", { class: "plot" }) };
  at.bar = h("div", { class: "bar", role: "img" }, at.parts, at.low, at.high);
  const card = h("article", { class: "card engine" }, h("div", { class: "name" }, at.id, at.state, at.of, at.button), at.why, at.bar, at.facts, at.plot);
  at.button.addEventListener("click", () => act(card.endpoint));
  card.at = at;
  return card;
}

function updateEngine(card, one, picture) {
  const { at } = card;
  card.endpoint = one;
  card.dataset.level = at.state.dataset.level = one.gate_open === false && one.healthy ? "warn" : levelOf(one);
  card.setAttribute("aria-label", `Engine ${one.id}`);
  text(at.id, one.id);
  const size = one.blocks ? `${count(one.blocks * one.block_size)} tokens of KV cache` : null;
  text(at.of, [one.model, one.kind, size].filter(Boolean).join("  ·  "));
  text(at.state, one.gate_open === false && one.healthy ? "gate closed" : one.state);
  const drained = one.state === "draining";
  text(at.button, drained ? "Undrain" : "Drain");
  at.button.setAttribute("aria-label", `${drained ? "Undrain" : "Drain"} ${one.id}`);
  const closed = one.closed_by ?? [];
  text(at.why, one.healthy && closed.length ? closed.map((rule) => card.ownerDocument.rules?.[rule] ?? rule).join("; ")
    : `${one.reason}${one.healthy ? "" : `, for ${seconds(picture.at - one.since)}`}`);
  const { split } = one;
  at.bar.hidden = split == null;
  if (split) {
    let left = 1;
    PARTS.forEach(([name], index) => {
      const width = Math.max(0, Math.min(split[name], left));
      left -= width;
      at.parts.children[index].style.width = `${(width * 100).toFixed(2)}%`;
    });
    fenceAt(at.low, picture.kv_low);
    fenceAt(at.high, picture.kv_high);
    at.bar.setAttribute("aria-label", `KV cache: ${PARTS.map(([name, words]) => `${percent(split[name])} ${words}`).join(", ")}, ${percent(split.free)} free`);
  }
  facts(at.facts, [
    ["KV cache", percent(one.usage), ""],
    ["Forecast", percent(one.forecast), ""],
    ["Running", count(one.in_flight ?? 0), one.sequence_limit ? `of ${count(one.sequence_limit)} seq` : ""],
    ["Output", one.generated_rate == null ? "–" : count(one.generated_rate), "tok/s"],
    ["Decode", one.decode_rate == null ? "–" : one.decode_rate.toFixed(one.decode_rate < 10 ? 1 : 0), "tok/s each"],
    ["Prefill", one.prefill_rate == null ? "–" : count(one.prefill_rate), "tok/s"],
    ["Preempted", count(one.preemptions), ""],
  ]);
  if (card.drawn !== picture.points.length + picture.points.at(-1)?.[0]) {
    card.drawn = picture.points.length + picture.points.at(-1)?.[0];
    charts.endpoint(at.plot, one.id, picture);
  }
}

function fenceAt(mark, share) {
  mark.style.left = `${share * 100}%`;
  text(mark.firstElementChild, String(Math.round(share * 100)));
}

function facts(list, rows) {
  keyed(list, rows, (row) => row[0], () => h("div", {}, h("dt"), h("dd", {}, h("span"), h("small"))), (row, [name, value, unit, tone]) => {
    text(row.firstElementChild, name);
    text(row.lastElementChild.firstElementChild, value);
    text(row.lastElementChild.lastElementChild, unit ? ` ${unit}` : "");
    row.lastElementChild.className = tone ?? "";
  });
}

// Traffic

export function traffic(picture, words) {
  const last = picture.points.at(-1)?.[0];
  if ($("plot-ended").drawn !== last) {
    $("plot-ended").drawn = last;
    charts.waiting($("plot-waiting"), picture);
    charts.ended($("plot-ended"), picture, Object.fromEntries(Object.entries(words.outcomes).map(([name, one]) => [name, one.kind])));
  }
  keyed($("models"), picture.models ?? [], (one) => one.model, model, (card, one) => updateModel(card, one, picture, words));
}

function model() {
  const at = { name: h("p", { class: "name" }), facts: h("dl", { class: "facts" }), outcomes: h("p", { class: "outcomes" }), rows: h("tbody") };
  const heads = [["Flow"], ["Band", "n"], ["Waiting", "n"], ["Oldest", "n"], ["Predicted wait", "n"], ["Service against weight"]];
  at.table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Flows" }, h("table", {},
    h("thead", {}, h("tr", {}, ...heads.map(([name, kind]) => h("th", { scope: "col", class: kind ?? "" }, name)))), at.rows));
  const card = h("article", { class: "card model" }, at.name, at.facts, at.outcomes, at.table);
  card.at = at;
  return card;
}

function updateModel(card, one, picture, words) {
  const { at } = card;
  text(at.name, one.model || "No model of ours");
  const late = (value) => (one.ttft_target != null && value > one.ttft_target ? "over" : "");
  const { ttft = {}, gap = {} } = one;
  facts(at.facts, [
    ["Waiting", count(one.waiting ?? 0), one.oldest ? `oldest ${seconds(picture.at - one.oldest)}` : ""],
    ["First token, p50", seconds(ttft.p50), "", late(ttft.p50)],
    ["p90", seconds(ttft.p90), "", late(ttft.p90)],
    ["p99", seconds(ttft.p99), one.ttft_target != null ? `target ${seconds(one.ttft_target)}` : "", late(ttft.p99)],
    ["Gap, p50", seconds(gap.p50), ""],
    ["Gap, p90", seconds(gap.p90), ""],
    ["Gap, p99", seconds(gap.p99), ""],
  ]);
  const outcomes = Object.entries(one.outcomes ?? {}).sort((a, b) => b[1] - a[1]);
  keyed(at.outcomes, outcomes, (row) => row[0], () => h("span", {}, h("b"), h("span")), (row, [name, number]) => {
    text(row.firstElementChild, count(number));
    text(row.lastElementChild, ` ${words.outcomes[name]?.words ?? name}`);
    row.title = `${name}, in the last 5 minutes`;
  });
  at.outcomes.hidden = !outcomes.length;
  at.table.hidden = !(one.flows ?? []).length;
  keyed(at.rows, one.flows ?? [], (flow) => `${flow.band} ${flow.flow}`, flowRow, (row, flow) => {
    const cells = row.children;
    text(cells[0], flow.flow || "(nobody)");
    text(cells[1], String(flow.band ?? "–"));
    text(cells[2], count(flow.waiting ?? 0));
    text(cells[3], flow.oldest ? seconds(picture.at - flow.oldest) : "–");
    text(cells[4], seconds(flow.predicted_wait));
    const [meter, said] = cells[5].children;
    meter.firstElementChild.style.width = `${(flow.service ?? 0) * 100}%`;
    meter.lastElementChild.style.left = `${(flow.due ?? 0) * 100}%`;
    text(said, `${percent(flow.service)}, due ${percent(flow.due)}`);
  });
}

const flowRow = () => h("tr", {}, h("td"), h("td", { class: "n dim" }), h("td", { class: "n" }), h("td", { class: "n" }), h("td", { class: "n" }),
  h("td", {}, h("span", { class: "meter", "aria-hidden": "true" }, h("i"), h("u")), h("span")));

// Requests

export function requests(picture, words, filter) {
  const wanted = filter.toLowerCase();
  const said = (one) => (one.phase === "ended" ? words.outcomes[one.outcome]?.words ?? one.outcome : one.phase);
  const matches = (one) => !wanted || [one.flow, one.model, one.endpoint, said(one), one.outcome, one.request_id]
    .some((each) => each?.toLowerCase().includes(wanted));
  const shown = (picture.requests ?? []).filter(matches);
  keyed($("requests").tBodies[0], shown, (one) => one.key, requestRow, (row, one) => updateRequest(row, one, picture, words, said(one)));
  $("no-requests").hidden = shown.length > 0;
  text($("no-requests"), wanted ? "None matches." : "None yet.");
}

const KIND_LEVELS = { done: "good", left: "none", refused: "warn", failed: "bad" };

const requestRow = () => h("tr", {}, h("td", {}, h("span", { class: "state" }, h("i", { class: "dot" }), h("span"))), h("td"), h("td", { class: "dim" }),
  h("td", { class: "n" }), h("td", {}, h("span", { class: "meter", "aria-hidden": "true" }, h("i")), h("span")), h("td", { class: "n" }), h("td", { class: "n" }),
  h("td", { class: "n" }), h("td", { class: "n" }), h("td", { class: "dim" }), h("td", { class: "n dim" }));

function updateRequest(row, one, picture, words, said) {
  const cells = row.children;
  const state = cells[0].firstElementChild;
  const running = one.phase === "running";
  state.dataset.level = one.phase === "ended" ? KIND_LEVELS[words.outcomes[one.outcome]?.kind] ?? "none" : running ? "busy" : "none";
  text(state.lastElementChild, said);
  cells[0].title = one.request_id ?? "";
  text(cells[1], one.flow);
  text(cells[2], one.model);
  cells[1].title = one.flow;
  cells[2].title = one.model;
  text(cells[3], count(one.prompt));
  const [meter, tokens] = cells[4].children;
  meter.hidden = !running;
  if (running) meter.firstElementChild.style.width = `${one.expected ? ((one.generated ?? 0) / one.expected) * 100 : 0}%`;
  text(tokens, running ? `${count(one.generated ?? 0)} of ${count(one.expected)}` : one.generated == null ? "–" : count(one.generated));
  text(cells[5], running ? count(one.held) : "–");
  text(cells[6], one.phase === "waiting" ? seconds(picture.at - one.came) : seconds(one.waited));
  text(cells[7], seconds(one.first));
  text(cells[8], one.ends == null ? "–" : running ? `in ${seconds(Math.max(0, one.ends - picture.at))}` : `${seconds(one.ends - one.came)}`);
  text(cells[9], one.endpoint ?? "–");
  text(cells[10], clock(one.came));
}
