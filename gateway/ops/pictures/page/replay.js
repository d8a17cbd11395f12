// The replay of a record: `kvgate replay FILE --page`. Its pictures come one by one, as they are looked at.

import { h, text } from "./draw.js";
import { clock, count, countFromZero, percent, seconds } from "./words.js";

const SPAN = 900;
const SPEEDS = [1, 5, 20, 100];
const $ = (id) => document.getElementById(id);
const svg = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

let series;
let at = 0; // the number of the picture that is shown
let side = 0;
let show = () => {};
let controls;

/** Shows the record's beginning, and the controls above it. `showing` draws a picture. */
export async function start(showing) {
  show = showing;
  countFromZero();
  document.documentElement.dataset.replay = "";
  document.head.append(h("link", { rel: "stylesheet", href: "page/replay.css" }));
  series = await fetch("replay").then((answer) => answer.json());
  controls = panel();
  $("main").prepend(controls.section);
  $("link").dataset.level = "good";
  text($("link").lastElementChild, "replay");
  await go(0);
}

const glances = () => series.sides[side].glances;
const last = () => series.sides[0].glances.length - 1;

/** Goes to a picture. Of several asked for at once the latest is drawn. */
async function go(number) {
  at = Math.max(0, Math.min(number, last()));
  update();
  const asked = [side, at];
  let picture;
  try {
    const answer = await fetch(`replay/${side}/${at}`);
    if (!answer.ok) throw new Error();
    picture = await answer.json();
  } catch {
    stop();
    $("link").dataset.level = "bad";
    text($("link").lastElementChild, "the replay has ended");
    return;
  }
  if (asked[0] !== side || asked[1] !== at) return;
  show({ ...picture, points: series.sides[side].points.slice(0, at + 1).filter((point) => point[0] > picture.at - SPAN) });
}

// What there is to jump to

const refuses = (number) => glances()[number].refused > 0;
const closes = (number) => glances()[number].closed.some((one) => !glances()[number - 1]?.closed.includes(one));

function next(is) {
  for (let number = at + 1; number <= last(); number += 1) if (is(number)) return number;
  return null;
}

// Playing

let playing = null;

function play() {
  let before = performance.now();
  let time = glances()[at].at;
  if (at === last()) { time = 0; go(0); }
  playing = setInterval(() => {
    const now = performance.now();
    time += ((now - before) / 1000) * Number(controls.speed.value);
    before = now;
    let number = at;
    while (number < last() && glances()[number + 1].at <= time) number += 1;
    if (number !== at) go(number);
    if (number === last()) stop();
  }, 100);
  update();
}

function stop() {
  clearInterval(playing);
  playing = null;
  update();
}

// The panel

function panel() {
  const made = {
    play: h("button", { type: "button", class: "main" }),
    speed: h("select", { "aria-label": "Speed" }, ...SPEEDS.map((speed) => h("option", { value: speed }, `${speed}×`))),
    refusal: h("button", { type: "button" }, "Next refusal"),
    closing: h("button", { type: "button" }, "Next closed gate"),
    slider: h("input", { type: "range", min: 0, max: last(), step: 1, "aria-label": "Time in the record" }),
    now: h("output", {}),
    sides: h("div", { class: "sides", role: "group", "aria-label": "Shown below" }),
    table: h("tbody"),
    modelled: h("p", { class: "hint" }),
  };
  made.speed.value = 5;
  made.play.addEventListener("click", () => (playing === null ? play() : stop()));
  made.refusal.addEventListener("click", () => jump(refuses));
  made.closing.addEventListener("click", () => jump(closes));
  made.slider.addEventListener("input", () => { if (playing !== null) stop(); go(Number(made.slider.value)); });
  series.sides.forEach((one, index) => {
    const button = h("button", { type: "button" }, named(one));
    button.addEventListener("click", () => turn(index));
    made.sides.append(button);
  });
  made.sides.hidden = series.sides.length < 2;
  made.section = h("section", { id: "replay", class: "card", "aria-labelledby": "h-replay" },
    h("div", { class: "head" }, h("h2", { id: "h-replay" }, `Replay of ${series.file}`), made.now),
    overview(), made.slider,
    h("div", { class: "row" }, made.play, made.speed, made.refusal, made.closing, made.sides),
    beside(made), made.modelled, ...remarks());
  return made;
}

const named = (one) => (one.settings.length ? `With ${one.settings.join(", ")}` : "As recorded");

function jump(is) {
  if (playing !== null) stop();
  const number = next(is);
  if (number !== null) go(number);
}

function turn(to) {
  side = to;
  for (const drawn of [$("plot-ended"), ...$("engines").children]) drawn.drawn = null; // other points, at the same times
  go(at);
}

function update() {
  const { at: time } = glances()[at];
  controls.slider.value = at;
  controls.slider.setAttribute("aria-valuetext", clock(time));
  text(controls.now, `${clock(time)} of ${clock(glances()[last()].at)}`);
  text(controls.play, playing === null ? "Play" : "Pause");
  controls.refusal.disabled = next(refuses) === null;
  controls.closing.disabled = next(closes) === null;
  [...controls.sides.children].forEach((button, index) => button.setAttribute("aria-pressed", String(index === side)));
  [...document.querySelectorAll("#replay svg g")].forEach((one, index) => one.classList.toggle("other", index !== side));
  compare();
}

/** The record over time: how full the fullest cache is, and what was refused. One drawing for each side. */
function overview() {
  const long = glances()[last()].at || 1;
  const drawing = svg("svg", { viewBox: "0 0 1000 60", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const one of series.sides) {
    const group = svg("g", {});
    const x = (glance) => ((glance.at / long) * 1000).toFixed(1);
    const refused = one.glances.filter((glance) => glance.refused).map((glance) => `M${x(glance)} 60v-12`).join("");
    const usage = one.glances.map((glance) => `${x(glance)},${(60 - Math.min(1, glance.usage ?? 0) * 58).toFixed(1)}`);
    group.append(svg("polyline", { points: usage.join(" "), class: "usage" }), svg("path", { d: refused, class: "refusals" }));
    drawing.append(group);
  }
  for (const begin of series.runs.slice(1)) drawing.append(svg("path", { d: `M${((begin / long) * 1000).toFixed(1)} 0v60`, class: "run" }));
  return drawing;
}

const ROWS = [
  ["KV cache of the fullest", (now) => percent(now.usage)],
  ["Gates closed", (now) => count(now.closed.length)],
  ["Running", (now) => count(now.running)],
  ["Waiting", (now) => count(now.waiting)],
  ["Oldest has waited", (now) => seconds(now.oldest)],
  ["Answered so far", (_, until) => count(until.answered)],
  ["Refused so far", (_, until) => count(until.refused)],
];

/** All sides at this time, beside each other. */
function beside(made) {
  made.table.append(...ROWS.map(([name]) => h("tr", {}, h("th", { scope: "row" }, name), ...series.sides.map(() => h("td", { class: "n" })))));
  const heads = series.sides.map((one) => h("th", { scope: "col", class: "n" }, named(one)));
  const table = h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "At this time"), ...heads)), made.table);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "At this time" }, table);
}

function compare() {
  series.sides.forEach((one, index) => {
    one.sums ??= sums(one.glances);
    ROWS.forEach(([, value], row) => text(controls.table.rows[row].cells[index + 1], value(one.glances[at], one.sums[at])));
  });
  const { otherwise, settings } = series.sides.at(-1);
  if (!settings.length) return;
  text(controls.modelled, otherwise == null ? "No decision differs under the other setting."
    : `Up to ${clock(otherwise)} both are as recorded. From there on the other side is modelled: each request is served as fast as in the record, `
      + "one that was refused there as fast as the mean; engines that are given more do not get slower, and clients who were refused do not come back. "
      + "The record's gauges are left out there. Take the direction from this, not the figures.");
}

const sums = (all) => {
  let [answered, refused] = [0, 0];
  return all.map((one) => ({ answered: answered += one.answered, refused: refused += one.refused }));
};

/** What a reader has to know of the record. */
function remarks() {
  const said = [`Times count from the first event. What a record does not tell is a dash: what came before admission, gaps between tokens, and engines' addresses. `
    + `A picture every ${seconds(series.interval)}; a gate that closed and opened in between is not seen.`];
  if (series.runs.length > 1) said.push(`The record has ${series.runs.length} runs; the time between them is left out.`);
  for (const run of series.gaps) said.push(`Lines of run ${run} are missing: the disk was too slow. What comes after the gap is left out.`);
  if (series.sides[0].otherwise != null) {
    said.push(`From ${clock(series.sides[0].otherwise)} on, this version decides otherwise than the one that wrote the record (${series.kvgate.join(", ")}): the record's requests go on as recorded.`);
  }
  return said.map((one) => h("p", { class: "hint" }, one));
}
