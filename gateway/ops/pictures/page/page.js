// The live page: follows the gateway, and draws what it tells.

import * as draw from "./draw.js";
import * as explain from "./explain.js";
import { ask, follow, insist } from "./feed.js";
import { changed } from "./picture.js";

const $ = (id) => document.getElementById(id);
let picture = null;
let due = false;

const words = await insist("page/words.json", lost);
document.rules = Object.fromEntries(words.rules.map((rule) => [rule.name, rule.meaning]));

function paint() {
  due = false;
  if (!picture || document.hidden) return;
  draw.top(picture);
  draw.engines(picture, drainOrNot);
  draw.traffic(picture, words);
  draw.requests(picture, words, $("filter").value);
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(paint);
}

function link(level, said) {
  $("link").dataset.level = level;
  draw.text($("link").lastElementChild, said);
}

/** Asks for the key until one is given. */
function locked(wrong) {
  const dialog = $("ask-key");
  $("key-wrong").textContent = wrong ? "That was not it." : "";
  $("key").value = "";
  dialog.oncancel = (event) => event.preventDefault();
  dialog.showModal();
  link("busy", "locked");
  return new Promise((done) => {
    dialog.onclose = () => {
      const given = $("key").value;
      $("key").value = "";
      done(given);
    };
  });
}

function event(name, data) {
  if (name === "silence") {
    lost(data.text);
    return;
  }
  picture = name === "snapshot" ? { points: [], ...data } : changed(picture, data);
  link("good", "live");
  soon();
}

function lost(why) {
  link("bad", picture ? "stale" : "no connection");
  $("top").dataset.level = "bad";
  draw.text($("headline").lastElementChild, why);
  draw.code($("advice"), picture ? "What is shown below is the last that was seen." : "");
}

async function drainOrNot(endpoint) {
  const back = endpoint.state === "draining";
  const running = endpoint.in_flight ?? 0;
  const sure = await confirmed(
    `${back ? "Undrain" : "Drain"} ${endpoint.id}?`,
    back ? "It gets requests again as soon as a probe finds it healthy."
      : `It gets no new requests. ${running === 1 ? "The one that runs" : `The ${running} that run`} on it will finish.`,
    back ? "Undrain" : "Drain",
  );
  if (!sure) return;
  try {
    const path = endpoint.id.split("/").map(encodeURIComponent).join("/");
    await ask(`endpoints/${path}/${back ? "undrain" : "drain"}`, { method: "POST" });
  } catch (error) {
    toast(error.message);
  }
}

function confirmed(title, said, yes) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = said;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => { dialog.onclose = () => done(dialog.returnValue === "yes"); });
}

let fading;
function toast(said) {
  $("toast").textContent = said;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").textContent = ""; }, 8000);
}

document.addEventListener("visibilitychange", soon);
$("filter").addEventListener("input", soon);
if (words.replay) {
  const { start } = await import("./replay.js");
  await start((made) => { picture = made; soon(); });
} else {
  explain.start(words);
  follow({ event, lost, locked });
}
