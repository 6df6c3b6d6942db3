// One request for an answer.

import { ApiError, documents } from "./api.js";
import { Answer } from "./answer.js";

/**
 * Stream an answer to `messages`. Resolves with it however it ends; `answer.problem` says what went wrong.
 * options   {model, sampling, speculation, salt, signal}; speculation is the request's object or null
 * onUpdate  called with the answer after every chunk
 */
export async function generate(messages, { model, sampling, speculation, salt, signal }, onUpdate) {
  const body = { model, messages, ...sampling, stream: true, stream_options: { include_usage: true } };
  Object.assign(body, { logprobs: true, token_details: true });
  if (speculation) body.speculation = speculation;
  if (salt) body.cache_salt = salt;
  const answer = new Answer();
  answer.time.start = performance.now();
  try {
    for await (const chunk of documents("/v1/chat/completions", { body, signal })) {
      answer.add(chunk);
      onUpdate(answer);
    }
  } catch (error) {
    if (error.name === "AbortError") answer.finish = "stopped";
    else if (error instanceof ApiError) Object.assign(answer, { finish: "error", problem: error.message, error });
    else throw error;
  }
  onUpdate(answer);
  return answer;
}
