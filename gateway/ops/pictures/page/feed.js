// The feed: follows `/kvgate/events`, and asks the other admin routes. Addresses are relative, so that a path prefix works.

let key = null; // in memory only

export const headers = () => (key === null ? {} : { authorization: `Bearer ${key}` });
export const useKey = (value) => { key = value; };

/** Asks an admin route; throws an Error with the gateway's own sentence. */
export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `The gateway answered ${answer.status}.`);
  return body;
}

/** Follows the events for ever. `on` has `event(name, data)`, `lost(why)`, and `locked(wrong)`, which resolves to a key. */
export async function follow(on) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      const answer = await fetch("events", { headers: headers(), cache: "no-store" });
      if (answer.status === 401) {
        useKey(await on.locked(key !== null));
        pause = 250;
        continue;
      }
      if (!answer.ok) throw new Error((await answer.json())?.error?.message);
      for await (const [name, data] of events(answer.body)) {
        on.event(name, data);
        pause = 250;
      }
      on.lost("The gateway ended the connection.");
    } catch (error) {
      on.lost(error instanceof TypeError ? "The gateway does not answer." : error.message);
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
