// Charts of the last 15 minutes, by uPlot. Each has the history's points as they are; none keeps more.

import { gauge } from "./picture.js";
import { clock } from "./words.js";

const uPlot = window.uPlot;
const charts = new Map();
let colour = () => "";

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colour = (name) => style.getPropertyValue(`--${name}`).trim();
}

const axis = (more) => ({
  stroke: () => colour("dim"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false },
  font: "11px system-ui, sans-serif", ...more,
});

function options(element, series, y, hooks) {
  return {
    width: Math.max(100, element.clientWidth), height: element.clientHeight, padding: [6, 4, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } }, legend: { show: false },
    scales: { x: { time: true, range: (_, least, most) => [Math.max(least, most - 900), most] }, y: { range: y } },
    axes: [axis({ space: 90, size: 22, values: (_, at) => at.map((each) => clock(each).slice(0, at[1] - at[0] < 60 ? 8 : 5)) }), axis({ size: 42, space: 28, values: hooks.values, incrs: hooks.whole && [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] })],
    series: [{}, ...series], hooks: { drawClear: hooks.under ?? [], draw: hooks.over ?? [], setCursor: [(plot) => tell(plot, hooks)] },
  };
}

// The values under the pointer, in the chart's own title.
function tell(plot, { words }) {
  const index = plot.cursor.idx;
  plot.root.title = index == null ? "" : `${clock(plot.data[0][index])}  ${words(plot.data.map((each) => each[index]), index)}`;
}

/** Draws `data` in an element; makes the chart first where there is none. */
function draw(element, data, make) {
  let chart = charts.get(element);
  if (!chart) {
    const plot = new uPlot(make(), data, element);
    plot.root.setAttribute("aria-hidden", "true"); // the figures beside it say the same
    const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(100, element.clientWidth), height: element.clientHeight }));
    watch.observe(element);
    chart = { plot, watch };
    charts.set(element, chart);
  } else {
    chart.plot.setData(data);
  }
}

export function remove(element) {
  const chart = charts.get(element);
  if (!chart) return;
  chart.watch.disconnect();
  chart.plot.destroy();
  charts.delete(element);
}

const line = (stroke, more) => ({ stroke: () => colour(stroke), width: 1.5, points: { show: false }, spanGaps: false, ...more });

/** An endpoint's usage and forecast, over the fence; shaded while its gate is closed. */
export function endpoint(element, id, picture) {
  const known = picture.points.map((point) => gauge(point, id));
  const at = picture.points.map((point) => point[0]);
  const data = [at, known.map((one) => one?.forecast ?? null), known.map((one) => one?.usage ?? null)];
  element.open = known.map((one) => one?.open ?? true);
  element.fence = [picture.kv_low, picture.kv_high];
  draw(element, data, () => options(element, [
    line("plan", { dash: [4, 3], width: 1, alpha: 0.8 }), line("run", { fill: () => `${colour("run")}26` }),
  ], (_, __, most) => [0, Math.max(1, Math.min(most ?? 1, 2))], {
    values: (_, marks) => marks.map((mark) => `${Math.round(mark * 100)} %`),
    words: (values) => `KV ${Math.round((values[2] ?? 0) * 100)} %, forecast ${Math.round((values[1] ?? 0) * 100)} %`,
    under: [(plot) => shadeClosed(plot, element)], over: [(plot) => fence(plot, element)],
  }));
}

function shadeClosed(plot, element) {
  const open = element.open ?? [];
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = `${colour("warn")}22`;
  open.forEach((is, index) => {
    if (is) return;
    const left = plot.valToPos(plot.data[0][Math.max(0, index - 1)], "x", true);
    ctx.fillRect(left, bbox.top, plot.valToPos(plot.data[0][index], "x", true) - left, bbox.height);
  });
  ctx.restore();
}

function fence(plot, element) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour("dim");
  ctx.setLineDash([2, 4]);
  for (const mark of element.fence ?? []) {
    const y = plot.valToPos(mark, "y", true);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

const whole = (_, marks) => marks.map((mark) => (Number.isInteger(mark) ? mark.toLocaleString("en") : mark < 10 ? String(mark) : ""));
const fromZero = (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.1)];

export function waiting(element, picture) {
  const data = [picture.points.map((point) => point[0]),
    picture.points.map((point) => Object.values(point[1]).reduce((sum, each) => sum + each, 0))];
  draw(element, data, () => options(element, [line("busy", { fill: () => `${colour("busy")}26` })], fromZero,
    { values: whole, whole: true, words: (values) => `${values[1]} waiting` }));
}

/** How requests ended, per second: three areas on top of each other. `kinds` says which outcome is which. */
export function ended(element, picture, kinds) {
  const { points } = picture;
  const rates = points.map((point, index) => {
    const span = index ? point[0] - points[index - 1][0] : 2;
    const sums = { done: 0, refused: 0, failed: 0, left: 0 };
    for (const [outcome, number] of Object.entries(point[3])) sums[kinds[outcome] ?? "left"] += number / span;
    return sums;
  });
  const data = [points.map((point) => point[0]), rates.map((one) => one.done + one.refused + one.failed),
    rates.map((one) => one.done + one.refused), rates.map((one) => one.done)];
  const area = (tone) => line(tone, { width: 0, fill: () => colour(tone), paths: uPlot.paths.stepped({ align: -1 }) });
  draw(element, data, () => options(element, [area("bad"), area("warn"), area("good")], fromZero, {
    values: whole,
    words: ([, all, some, done]) => `${done.toFixed(1)} answered, ${(some - done).toFixed(1)} refused, ${(all - some).toFixed(1)} failed per second`,
  }));
}

readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  for (const { plot } of charts.values()) plot.redraw(false);
});
