// Numbers and times for people.

export const percent = (share) => (share == null ? "–" : `${Math.round(share * 100)} %`);
export const count = (number) => (number == null ? "–" : Math.round(number).toLocaleString("en"));

export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value < 0.00005) return "0 s";
  if (value < 0.9995) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

let told = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
export const clock = (at) => told(at);

/** From now on times are those of a record: they count from its beginning. */
export function countFromZero() {
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  told = (at) => `${two(at / 3600)}:${two((at / 60) % 60)}:${two(at % 60)}`;
}
