// DejaQ for programs in a browser: a producer, and consumers with leases, over one WebSocket to `dejaq web`.
// No build, no dependency; docs/browser.md describes it. Copy this file, or import it from the gateway.
const RETRY_MS_MAX = 8000, UNKNOWN_CALLER = 4401, encoder = new TextEncoder();

// An error with DejaQ's `code`. `retryable`: try again later. `indefinite`: it may have been done or not.
export class DejaqError extends Error {
  constructor({ code = "NO_BROKER", detail = "", retryable = false, indefinite = false } = {}) {
    super(`${code}: ${detail}`);
    Object.assign(this, { name: "DejaqError", code, retryable, indefinite });
  }
}

const broken = (indefinite) => new DejaqError({ code: "NO_BROKER", detail: "the connection to the gateway broke", retryable: true, indefinite });

// `url` is the gateway (default: where this page came from), `token` an API key or a token, or a function that gives one.
export function connect(url = location.origin, options = {}) { return new Client(url, options); }

class Client {
  #address; #token; #socket = null; #ready; #tell = {}; #calls = new Map(); #consumers = new Set(); #views = new Map(); #last = 0; #delay = 250; #closed = false; #deadline; #watching;
  constructor(url, { token = "", deadline = 30 } = {}) {
    this.#address = `${url.replace(/^http/, "ws").replace(/\/$/, "")}/api/v1/socket`;
    this.#token = token; this.#deadline = deadline * 1000;
    this.#wait(); this.#connect();
  }

  // Resolves when the gateway has accepted the caller; rejects when it does not know the caller.
  get ready() { return this.#ready; }
  // The difference to the broker's clock in ms: broker = Date.now() + offset.
  offset = 0;

  #wait() { this.#ready = new Promise((resolve, reject) => { this.#tell = { resolve, reject }; }); this.#ready.catch(() => {}); }

  async #connect() {
    let token;
    try { token = typeof this.#token === "function" ? await this.#token() : this.#token; }
    catch (error) { this.#tell.reject(error); return; }
    if (this.#closed) return;
    const socket = this.#socket = new WebSocket(this.#address);
    socket.addEventListener("open", () => socket.send(JSON.stringify(token ? { call: "hello", token } : { call: "hello" })));
    socket.addEventListener("message", (event) => this.#received(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.#lost(event));
  }

  #received(frame) {
    if (frame.ready) {
      this.offset = frame.now - Date.now(); this.#delay = 250; this.#tell.resolve(this);
      for (const consumer of this.#consumers) consumer._open();
      if (this.#views.size) this.#watch();
    } else if (frame.leases) {
      for (const consumer of this.#consumers) if (consumer._number === frame.consumer) consumer._leased(frame);
    } else if (frame.view) {
      this.offset = frame.now - Date.now();
      for (const one of this.#views.values()) if (isFor(one.view, frame.view)) one.handler(frame.data ?? null, frame.now, frame.error ? new DejaqError(frame.error) : null);
    } else {
      const call = this.#calls.get(frame.n);
      this.#calls.delete(frame.n);
      if (frame.error) call?.reject(new DejaqError(frame.error)); else call?.resolve(frame);
    }
  }

  #lost(event) {
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const consumer of this.#consumers) consumer._lost();
    for (const call of calls) call.reject(broken(true));
    if (event.code === UNKNOWN_CALLER) {
      const error = new DejaqError({ code: "UNAUTHENTICATED", detail: event.reason });
      this.#tell.reject(error); this.#closed = true;
      for (const consumer of [...this.#consumers]) consumer._end(error);
      return;
    }
    if (this.#closed) return;
    this.#tell.reject(broken(false)); this.#wait();
    // Clients that lost one gateway do not all come back at the same moment.
    setTimeout(() => this.#connect(), this.#delay * (0.5 + Math.random()));
    this.#delay = Math.min(this.#delay * 2, RETRY_MS_MAX);
  }

  async _call(fields) {
    await this.#ready;
    if (this.#closed) throw new DejaqError({ code: "OUT_OF_STATE", detail: "the client is closed" });
    const n = ++this.#last;
    return new Promise((resolve, reject) => { this.#calls.set(n, { resolve, reject }); this.#socket.send(JSON.stringify({ n, ...fields })); });
  }

  // Send one message or a list: {body, at | delay, id, priority, headers}. A body is text, bytes, or a value that becomes JSON.
  // Messages without an id get one here, so that a repeat after a broken connection creates nothing twice.
  async send(topic, messages, { group = "default" } = {}) {
    const list = Array.isArray(messages) ? messages : [messages], until = Date.now() + this.#deadline;
    const rows = list.map(({ body = "", ...rest }) => ({ id: newId(), ...rest, ...encoded(body) }));
    for (;;) {
      try {
        const { results } = await this._call({ call: "send", topic, group, messages: rows });
        const failed = results.find((one) => !one.ok);
        if (failed && !Array.isArray(messages)) throw new DejaqError(failed);
        return Array.isArray(messages) ? results : results[0];
      } catch (error) {
        if (!error.retryable || this.#closed || Date.now() > until) throw error;
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
    }
  }

  // Any operation of the HTTP API by its operationId: `await client.call("countMessages", { path: { topic: "mail" } })`.
  async call(operation, { path = {}, query = {}, headers = {}, body } = {}) {
    const { value } = await this._call({ call: "operation", operation, path, query, headers, ...(body === undefined ? {} : { body }) });
    return value;
  }

  // Change a message of its owner: {body, at | delay, priority, headers}; with `version` only if it still has this version.
  async edit(topic, id, { body, ...change }, { group = "default", version } = {}) {
    return this.call("editMessage", { path: { topic, id }, query: { group }, headers: matching(version), body: { ...change, ...(body === undefined ? {} : encoded(body)) } });
  }

  async cancel(topic, id, { group = "default", version } = {}) { await this.call("cancelMessage", { path: { topic, id }, query: { group }, headers: matching(version) }); }

  // Several changes or none: [{do: "send" | "edit" | "move" | "cancel" | "append", topic, ...}, {do: "delete" | "release", lease}].
  async transaction(steps, { group = "default" } = {}) {
    const listed = steps.map(({ body, lease, ...rest }) => ({ ...(rest.do === "send" ? { id: newId() } : {}), ...rest, ...(lease ? { lease: lease._id, topic: lease.topic } : {}), ...(body === undefined ? {} : encoded(body)) }));
    return (await this.call("transact", { query: { group }, body: { steps: listed } })).ids;
  }

  // Send a message and wait until its consumer replies.
  async request(topic, { body = "", ...rest }, { group = "default", timeout = 20 } = {}) {
    const reply = await this.call("sendRequest", { path: { topic }, query: { group }, body: { id: newId(), ...rest, ...encoded(body), timeout } });
    return new Reply(reply);
  }

  // Live data, as the pages show it: {kind: "topic" | "due" | "timeline" | "overview" | "lateness", topic, ...}. The handler
  // gets (data, now) again and again, or (null, now, error). Returns a function that ends it.
  watch(view, handler) {
    const place = {};
    this.#views.set(place, { view, handler });
    this.#ready.then(() => this.#watch(), () => {});
    return () => { if (this.#views.delete(place)) this.#watch(); };
  }

  #watch() {
    clearTimeout(this.#watching);
    this.#watching = setTimeout(() => this._call({ call: "watch", views: [...this.#views.values()].map((one) => one.view) }).catch((error) => {
      if (!error.retryable) for (const one of this.#views.values()) one.handler(null, Date.now() + this.offset, error);
    }), 0);
  }

  // A consumer: `for await (const lease of client.consumer("mail")) { ...; await lease.delete(); }`
  consumer(topic, { name = `browser-${newId().slice(0, 8)}`, lease = 30, credit = 10 } = {}) {
    const made = new Consumer(this, { topic, name, lease, credit }, () => this.#consumers.delete(made));
    this.#consumers.add(made);
    this.#ready.then(() => made._open(), (error) => { if (!error.retryable) made._end(error); });
    return made;
  }

  // Close every consumer and the connection; messages that are not settled are delivered again.
  async close() {
    await Promise.allSettled([...this.#consumers].map((consumer) => consumer.close()));
    this.#closed = true; this.#tell.reject(broken(false));
    this.#socket?.close(1000);
  }
}

class Consumer {
  _number = null; #client; #options; #waiting = []; #takers = []; #error = null; #ended = false; #forget; #opening = false;
  constructor(client, options, forget) { this.#client = client; this.#options = options; this.#forget = forget; }

  async _open() {
    if (this.#opening || this.#ended || this._number !== null) return;
    this.#opening = true;
    try {
      const answer = await this.#client._call({ call: "open", ...this.#options });
      this._number = answer.consumer;
      if (this.#ended) this.#client._call({ call: "close", consumer: this._number }).catch(() => {});
    } catch (error) { if (!error.retryable) this._end(error); else if (error.code !== "NO_BROKER" || !error.indefinite) setTimeout(() => this._open(), 1000); }
    finally { this.#opening = false; }
  }

  _leased({ leases, error }) {
    for (const one of leases) this.#waiting.push(new Lease(this.#client, one));
    if (error) { const found = new DejaqError(error); this._number = null; if (found.retryable) setTimeout(() => this._open(), 1000); else this._end(found); }
    this.#serve();
  }

  // Messages that the program has not seen yet belong to the broken connection.
  _lost() { this._number = null; this.#waiting = []; }
  _end(error) { this.#ended = true; this.#error = error; this.#forget(); this.#serve(); }

  #serve() {
    while (this.#takers.length && this.#waiting.length) this.#takers.shift().resolve({ value: this.#waiting.shift(), done: false });
    while (this.#takers.length && this.#ended) { const taker = this.#takers.shift(); if (this.#error) taker.reject(this.#error); else taker.resolve({ value: undefined, done: true }); }
  }

  next() { return new Promise((resolve, reject) => { this.#takers.push({ resolve, reject }); this.#serve(); }); }
  async return() { await this.close(); return { value: undefined, done: true }; }
  [Symbol.asyncIterator]() { return this; }

  // Stop; messages that are not settled are delivered again.
  async close() {
    if (this.#ended) return;
    const number = this._number;
    this._number = null; this.#waiting = [];
    this._end(null);
    if (number !== null) await this.#client._call({ call: "close", consumer: number }).catch(() => {});
  }
}

class Lease {
  #client; #lease;
  constructor(client, { lease, body, body_base64, expires_ms, ...rest }) {
    this.#client = client; this.#lease = lease;
    Object.assign(this, rest);
    this.bytes = decoded(body, body_base64);
    this.expires = new Date(expires_ms);
  }
  get _id() { return this.#lease; }
  get text() { return new TextDecoder().decode(this.bytes); }
  json() { return JSON.parse(this.text); }
  #settle(how, more = {}) { return this.#client._call({ call: "settle", lease: this.#lease, how, ...more }); }
  // It is processed. Raises LEASE_LOST when the lease is over: the message is delivered again.
  async delete() { await this.#settle("delete"); }
  // It is processed, and its producer, who waits for a reply (`wants_reply`), gets one.
  async reply(body, headers = {}) { await this.#settle("delete", { reply: { ...encoded(body), headers } }); }
  async progress(text) { await this.#settle("progress", { text }); }
  async release({ at, delay } = {}) { await this.#settle("release", { ...(at === undefined ? {} : { at }), ...(delay === undefined ? {} : { delay }) }); }
  async reject(reason) { await this.#settle("reject", { reason }); }
  async extend(seconds) { const { expires_ms } = await this.#settle("extend", { seconds }); this.expires = new Date(expires_ms); }
}

class Reply {
  constructor({ id, headers, body, body_base64 }) { Object.assign(this, { id, headers, bytes: decoded(body, body_base64) }); }
  get text() { return new TextDecoder().decode(this.bytes); }
  json() { return JSON.parse(this.text); }
}

const isFor = (asked, shown) => Object.entries(asked).every(([name, value]) => shown[name] === value);
const matching = (version) => version === undefined ? {} : { "If-Match": `"${version}"` };
const decoded = (body, base64) => base64 === undefined ? encoder.encode(body ?? "") : Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
function newId() { return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join(""); }

function encoded(body) {
  if (typeof body === "string") return { body };
  const bytes = body instanceof ArrayBuffer ? new Uint8Array(body) : ArrayBuffer.isView(body) ? new Uint8Array(body.buffer, body.byteOffset, body.byteLength) : null;
  if (bytes === null) return { body: JSON.stringify(body) };
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return { body_base64: btoa(text) };
}
