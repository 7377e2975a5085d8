// One WebSocket per page. It subscribes to views and gets their newest answers; after an outage it connects again.
const handlers = new Map();
let socket = null, delay = 500, leaving = false;
// The way to the page behind a form must not be cut off by a reload because that form has ended the session.
document.addEventListener("submit", (event) => { leaving = event.target.method === "post"; });

// A tab that nobody sees asks for nothing.
const wanted = () => JSON.stringify({ views: document.visibilityState === "hidden" ? [] : [...handlers.values()].map((one) => one.view) });
function state(text) { const place = document.querySelector("#connection"); if (place.textContent !== text) place.textContent = text; }
const send = () => { if (socket?.readyState === WebSocket.OPEN) socket.send(wanted()); };

// Shows one view under a name; another view of the same name replaces it.
export function watch(name, view, handler) {
  handlers.set(name, { view, handler, key: JSON.stringify(Object.entries(view).sort()) });
  if (socket) send(); else connect();
}

document.addEventListener("visibilitychange", () => send());

function connect() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket.addEventListener("open", () => { delay = 500; state("live"); send(); });
  socket.addEventListener("message", (event) => {
    const answer = JSON.parse(event.data);
    if (answer.error) { state(`${answer.error.code}: ${answer.error.detail}`); return; }
    state("live");
    const key = JSON.stringify(Object.entries(answer.view).sort());
    for (const one of handlers.values()) if (one.key === key) one.handler(answer.data, answer.now);
  });
  socket.addEventListener("close", (event) => {
    // The session has ended: the page leads to the sign-in and back.
    if (event.code === 4401) { if (!leaving) location.reload(); return; } state("disconnected; connecting again"); setTimeout(connect, delay); delay = Math.min(delay * 2, 8000); });
}
