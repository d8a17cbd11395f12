// The picture and its changes: as `changed` in gateway/ops/pictures/picture.py.

const SPAN = 900;
const WHOLE = ["version", "mode", "kv_high", "kv_low", "headline", "signs", "endpoints", "models"];

export function changed(before, by) {
  const known = new Map([...(before.requests ?? []), ...(by.requests ?? [])].map((one) => [one.key, one]));
  const order = by.order ?? (before.requests ?? []).map((one) => one.key);
  const points = [...(before.points ?? []), ...(by.points ?? [])].filter((point) => point[0] > by.at - SPAN);
  const after = { ...before, at: by.at, requests: order.map((one) => known.get(one)), points };
  for (const name of WHOLE) if (name in by) after[name] = by[name];
  return after;
}

// A point is [at, waiting by model, endpoints, outcomes]; an endpoint's gauge as follows.
export const gauge = (point, id) => {
  const found = point[2][id];
  return found && { usage: found[0], forecast: found[1], sequences: found[2], open: found[3], generated: found[4] };
};
