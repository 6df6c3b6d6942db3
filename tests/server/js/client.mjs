// Drives a server with OpenAI's client: node client.mjs URL MODEL. Prints a line for every check that passed, and ends
// with the first that fails.
import assert from "node:assert/strict";

// Found beside the installed package, which is not in this folder: see test_js_client.py.
const { default: OpenAI } = await import(process.env.OPENAI_CLIENT ?? "openai");

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "hello there" }];

const schema = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
  "x-guidance": { whitespace_pattern: " ?" },
};
const tools = [{ type: "function", function: { name: "get_weather", parameters: schema } }];

function checkWeather(text) {
  const value = JSON.parse(text);
  assert.deepEqual(Object.keys(value).sort(), ["city", "days"]);
  assert.ok(schema.properties.city.enum.includes(value.city));
  assert.ok(Number.isInteger(value.days) && value.days >= 1 && value.days <= 9);
}

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("it was not refused");
}

const checks = {
  async models() {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    assert.deepEqual(names, [model]);
    assert.equal((await client.models.retrieve(model)).owned_by, "forerun");
  },

  async chat() {
    const options = { model, messages, max_tokens: 24, seed: 7 };
    const whole = await client.chat.completions.create(options);
    let text = "";
    let usage = null;
    let reason = null;
    const stream = await client.chat.completions.create({
      ...options,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      reason = chunk.choices[0]?.finish_reason ?? reason;
      usage = chunk.usage ?? usage;
    }
    assert.ok(text.length > 0);
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(reason, whole.choices[0].finish_reason);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    assert.equal(whole.choices[0].seed, 7);
    const off = await client.chat.completions.create({ ...options, speculation: { drafter: "off" } });
    assert.equal(off.choices[0].message.content, text);
    assert.equal(off.speculation.drafted, 0);
  },

  async completions() {
    const options = { model, prompt: ["one two", "three"], max_tokens: 12, temperature: 0, logprobs: 1 };
    const whole = await client.completions.create(options);
    const texts = ["", ""];
    for await (const chunk of await client.completions.create({ ...options, stream: true })) {
      for (const choice of chunk.choices) texts[choice.index] += choice.text;
    }
    assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
    assert.equal(whole.choices[0].logprobs.tokens.length, 12);
  },

  async responses() {
    const options = { model, input: "hello there", max_output_tokens: 16, seed: 3 };
    const whole = await client.responses.create(options);
    const kinds = [];
    let text = "";
    for await (const event of await client.responses.create({ ...options, stream: true })) {
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, whole.output_text);
    assert.equal(kinds[0], "response.created");
    assert.match(kinds.at(-1), /^response\.(completed|incomplete)$/);
  },

  async tools() {
    const options = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, seed: 1 };
    const whole = await client.chat.completions.create({ ...options, max_tokens: 200 });
    const [call] = whole.choices[0].message.tool_calls;
    assert.equal(whole.choices[0].finish_reason, "tool_calls");
    checkWeather(call.function.arguments);
    const stream = client.chat.completions.stream({ ...options, max_tokens: 200 });
    const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.equal(streamed.function.arguments, call.function.arguments);
    const answer = await client.chat.completions.create({
      model,
      messages: [...messages, whole.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }],
      max_tokens: 4,
    });
    assert.equal(answer.usage.completion_tokens, 4);
  },

  async structuredOutput() {
    const format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema } };
    const options = { model, messages, max_tokens: 200, temperature: 0 };
    const chat = await client.chat.completions.parse({ ...options, response_format: format });
    checkWeather(chat.choices[0].message.content);
    const plain = await client.chat.completions.create({ ...options, guided_regex: "(ab){2,5}!" });
    assert.match(plain.choices[0].message.content, /^(ab){2,5}!$/);
    const text = { format: { type: "json_schema", name: "weather", strict: true, schema } };
    checkWeather((await client.responses.create({ model, input: "x", max_output_tokens: 200, text })).output_text);
  },

  async errors() {
    const wrong = await refusal(client.chat.completions.create({ model, messages, colour: "red" }));
    assert.ok(wrong instanceof OpenAI.BadRequestError);
    assert.deepEqual([wrong.status, wrong.param, wrong.code], [400, "colour", "unknown_parameter"]);
    const range = await refusal(client.chat.completions.create({ model, messages, temperature: 9 }));
    assert.equal(range.param, "temperature");
    const other = await refusal(client.chat.completions.create({ model: "gpt-4o", messages }));
    assert.ok(other instanceof OpenAI.NotFoundError);
    assert.equal(other.code, "model_not_found");
    const absent = await refusal(client.embeddings.create({ model, input: "x" }));
    assert.match(absent.message, /embeddings need a model/);
  },

  async abort() {
    const options = { model, messages, max_tokens: 1900, n: 4, ignore_eos: true };
    const stream = await client.chat.completions.create({ ...options, stream: true });
    let count = 0;
    for await (const _ of stream) if (++count === 3) break; // leaving the loop ends the request
    const controller = new AbortController();
    const waiting = client.chat.completions.create(options, { signal: controller.signal });
    setTimeout(() => controller.abort(), 50);
    assert.ok((await refusal(waiting)) instanceof OpenAI.APIUserAbortError);
    const end = Date.now() + 20_000;
    for (;;) {
      const health = await (await fetch(`${url}/health`)).json();
      if (health.generations.open === 0) break;
      assert.ok(Date.now() < end, "the generations go on");
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(name);
}
