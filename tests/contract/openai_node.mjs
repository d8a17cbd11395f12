// What a user of OpenAI's Node SDK does, with nothing changed but the base URL. Prints one JSON object.
// node openai_node.mjs NODE_MODULES_FOLDER BASE_URL MODEL PROMPT
import { createRequire } from "node:module";

const [folder, baseURL, model, prompt] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 2 });
const asked = { model, messages: [{ role: "user", content: prompt }], max_tokens: 20, temperature: 0 };

async function failure(ask) {
  try {
    await ask();
    return null;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
  }
}

async function collect(stream, texts) {
  for await (const chunk of stream) texts.push(chunk.choices[0]?.delta?.content ?? "");
}

const whole = await client.chat.completions.create(asked);
const pieces = [];
await collect(await client.chat.completions.create({ ...asked, stream: true }), pieces);
const completion = await client.completions.create({ model, prompt, max_tokens: 4, temperature: 0 });
const unknown = await failure(() => client.chat.completions.create({ ...asked, model: "other" }));
const tooLong = await failure(() =>
  client.chat.completions.create({ ...asked, messages: [{ role: "user", content: "w ".repeat(5000) }] }),
);
const torn = [];
const broken = await failure(async () =>
  collect(await client.chat.completions.create({ ...asked, user: "break", stream: true }), torn),
);

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    requestId: whole._request_id,
    pieces,
    completion: completion.choices[0].text,
    unknown,
    tooLong,
    torn: torn.join(""),
    broken,
  }),
);
