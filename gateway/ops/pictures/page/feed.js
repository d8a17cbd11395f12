// The feed: follows `/kvgate/events`, and asks the other admin routes. Addresses are relative, so that a path prefix works.

let key = null; // in memory only
const PATIENCE = 15000; // ms; the events come twice a second, and a laptop that slept does not hear that a connection has ended

export const headers = () => (key === null ? {} : { authorization: `Bearer ${key}` });
export const useKey = (value) => { key = value; };

/** Asks an admin route; throws an Error with the gateway's own sentence. */
export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `The gateway answered ${answer.status}.`);
  return body;
}

/** Asks until it is answered; `lost(why)` is told of each failure. */
export async function insist(path, lost) {
  for (;;) {
    try {
      return await ask(path, { signal: AbortSignal.timeout(PATIENCE) });
    } catch (error) {
      lost(said(error));
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

/** What a failed request means to a reader. */
function said(error) {
  return error instanceof TypeError || error instanceof DOMException ? "The gateway does not answer." : error.message;
}

/** Follows the events for ever. `on` has `event(name, data)`, `lost(why)`, and `locked(wrong)`, which resolves to a key. */
export async function follow(on) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    const silent = new AbortController();
    let due = setTimeout(() => silent.abort(), PATIENCE);
    try {
      const answer = await fetch("events", { headers: headers(), cache: "no-store", signal: silent.signal });
      if (answer.status === 401) {
        clearTimeout(due); // a person may take longer
        useKey(await on.locked(key !== null));
        pause = 250;
        continue;
      }
      if (!answer.ok) throw new Error((await answer.json())?.error?.message);
      for await (const [name, data] of events(answer.body)) {
        clearTimeout(due);
        due = setTimeout(() => silent.abort(), PATIENCE);
        on.event(name, data);
        pause = 250;
      }
      on.lost("The gateway ended the connection.");
    } catch (error) {
      on.lost(said(error));
    } finally {
      clearTimeout(due);
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const [name, data] = event.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}
