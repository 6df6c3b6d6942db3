// Talking to the server: keys, errors as the server words them, and event streams.

const KEY = "forerun.key";

/** What went wrong. status 0: the server could not be reached. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code });
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** GET, or POST when there is a body. Rejects with ApiError; with AbortError when `signal` says so. */
export async function request(path, { body = null, signal = null } = {}) {
  const headers = {};
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // not the server's own answer, a proxy's perhaps
  }
  if (!error?.message) return new ApiError(`The server answered ${response.status}.`, { status: response.status });
  return new ApiError(error.message, { status: response.status, param: error.param, code: error.code });
}

/** The documents of an event stream. */
export async function* documents(path, options) {
  const response = await request(path, options);
  let buffer = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const data = dataOf(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (data === "[DONE]") return;
        if (data === null) continue;
        const document = JSON.parse(data);
        if (document.error) throw new ApiError(document.error.message, { status: 200, ...document.error });
        yield document;
      }
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server broke off.");
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError("The connection to the server broke off.");
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).trimStart()).join("\n") : null;
}
