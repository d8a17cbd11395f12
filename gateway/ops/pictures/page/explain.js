// "Explain": the rules that a request passes at each endpoint, in the order in which they are asked.

import { ask } from "./feed.js";
import { h } from "./draw.js";
import { count, percent, seconds } from "./words.js";

const APART = { down: "it takes no traffic", unreached: "this gateway cannot reach it", context_length: "the request is too long for it" };

export function start(words) {
  const form = document.getElementById("explain");
  const out = document.getElementById("explained");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const flow = form.elements.flow.value.trim();
    out.replaceChildren(h("p", { class: "hint" }, "Asking…"));
    try {
      const found = await ask(`explain${flow ? `?flow=${encodeURIComponent(flow)}` : ""}`, {
        method: "POST", body: form.elements.body.value, headers: { "content-type": "application/json" },
      });
      out.replaceChildren(...drawn(found, words));
    } catch (error) {
      out.replaceChildren(h("p", { class: "verdict wrong" }, "It would be refused."), h("p", {}, error.message));
    }
  });
}

function drawn(found, words) {
  const { decision } = found;
  const refused = !["dispatch", "queue"].includes(decision.verdict);
  const verdict = decision.verdict === "dispatch" ? `It would go to ${decision.endpoint} at once.`
    : decision.verdict === "queue" ? `It would wait${decision.predicted_wait == null ? "" : `, for about ${seconds(decision.predicted_wait)}`}.`
      : `It would be refused: ${words.outcomes[decision.verdict]?.words ?? decision.verdict}.`;
  const facts = [
    `${count(found.prompt_tokens)} prompt tokens (${found.counted})`, `output of about ${count(decision.predicted_output)}, at most ${count(found.max_tokens)}`,
    decision.holds_blocks == null ? null : `${count(decision.holds_blocks)} blocks at first`,
    decision.predicted_prefill ? `prefill of about ${seconds(decision.predicted_prefill)}` : null,
    decision.retry_after == null ? null : `told to come back in ${seconds(decision.retry_after)}`, `as flow ${found.flow}, band ${found.band}`,
  ].filter(Boolean);
  return [
    h("p", { class: refused ? "verdict wrong" : "verdict" }, verdict), h("p", { class: "hint" }, facts.join("  ·  ")),
    h("div", { class: "way" }, ...decision.candidates.map((candidate) => way(candidate, words))),
  ];
}

function way(candidate, words) {
  const steps = [];
  if (candidate.rule in APART) {
    steps.push(step("warn", candidate.rule, APART[candidate.rule]));
  } else {
    const at = words.rules.findIndex((rule) => rule.name === candidate.rule);
    words.rules.forEach((rule, index) => {
      const level = at < 0 || index < at ? "good" : index === at ? "warn" : "none";
      const lacks = index === at && candidate.lacks != null ? `${candidate.lacks.toFixed(1)} ${candidate.unit} short: ` : "";
      steps.push(step(level, rule.name, level === "warn" ? lacks + rule.meaning : null));
    });
    if (at < 0) steps.push(step("good", "fits", `forecast ${percent(candidate.forecast_without)}, with it ${percent(candidate.forecast_with)}`));
  }
  return h("section", {}, h("h3", {}, candidate.endpoint), h("ol", {}, ...steps));
}

const SAID = { good: "passes", warn: "is refused by", none: "is not asked" };

function step(level, name, more) {
  const row = h("li", { "data-level": level }, h("span", { class: "unseen" }, `${SAID[level]} `), h(level === "warn" ? "b" : "span", {}, name));
  if (more) row.append(h("small", {}, more));
  return row;
}
