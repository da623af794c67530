// Asks the server for news, and writes it into the page. Whatever clients said of themselves is
// only ever text here: nothing is made of HTML.

import { Chart } from "./charts.js";

const PERIOD = 1000; // ms; where the server answers, it is the one that waits about as long
const PATIENCE = 8000; // ms until a question counts as lost

const STATES = {
  new: "Waiting for the first client",
  alone: "No client is connected",
  running: "Running",
  learning: "Learning",
  finished: "The run is over",
  stopped: "Stopped by its operator",
  failed: "The run failed, the server's log says why",
};
const ENDED = new Set(["finished", "stopped", "failed"]);

const byId = (id) => document.getElementById(id);

// -- numbers as text ---------------------------------------------------------------------------

const NONE = "–";
const whole = (value) => Math.round(value).toLocaleString("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function amount(value) {
  if (value === null) return NONE;
  const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 10 ? 1 : 3;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

function span(seconds) {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

function brief(seconds) {
  if (seconds === null) return NONE;
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${(seconds * 1e6).toPrecision(3)} µs`;
}

const ago = (seconds) => (seconds < 1 ? "now" : `${span(seconds)} ago`);
const plural = (n, one, many) => `${whole(n)} ${n === 1 ? one : many}`;

// -- parts of the page -------------------------------------------------------------------------

function fill(table, rows) {
  const body = byId(table).tBodies[0];
  const heads = byId(table).tHead.rows[0].cells;
  body.replaceChildren(
    ...rows.map((cells) => {
      const row = document.createElement("tr");
      row.role = "row";
      cells.forEach((text, column) => {
        const cell = document.createElement(column === 0 ? "th" : "td");
        if (column === 0) cell.scope = "row";
        // Said once more, for cells that a phone shows as blocks are none to screen readers.
        cell.role = column === 0 ? "rowheader" : "cell";
        cell.dataset.label = heads[column].textContent;
        cell.className = heads[column].className;
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }),
  );
  byId(table).parentElement.hidden = rows.length === 0;
}

function showNumbers(numbers) {
  byId("numbers").replaceChildren(
    ...numbers.map(([name, value, more]) => {
      const pair = document.createElement("div");
      const term = document.createElement("dt");
      const number = document.createElement("dd");
      term.textContent = name;
      number.textContent = value;
      if (more) {
        const small = document.createElement("small");
        small.textContent = more;
        number.append(small);
      }
      pair.append(term, number);
      return pair;
    }),
  );
}

const returns = new Chart(byId("returns").querySelector(".chart"), {
  x: "env steps",
  y: "mean return of 100 episodes",
  formatX: (value) => compact.format(value),
  formatY: (value) => compact.format(value),
  timed: false,
});
const pace = new Chart(byId("pace").querySelector(".chart"), {
  x: "time since the server started",
  y: "env steps per second",
  formatX: span,
  formatY: (value) => compact.format(value),
  timed: true,
});

function showReturns(curve) {
  const xs = [];
  const ys = [];
  curve.returns.forEach((value, i) => {
    if (value === null || curve.steps[i] === xs.at(-1)) return;
    xs.push(curve.steps[i]);
    ys.push(value);
  });
  byId("returns").querySelector(".chart").hidden = ys.length === 0;
  returns.show(xs, ys);
  const best = Math.max(...ys);
  byId("returns").querySelector(".summary").textContent =
    ys.length === 0
      ? "No episode has ended yet."
      : `Mean return of the last 100 episodes: ${amount(ys.at(-1))} at step ${whole(xs.at(-1))}; ` +
        `it began with ${amount(ys[0])}, its highest was ${amount(best)} at step ` +
        `${whole(xs[ys.indexOf(best)])}.`;
}

/** Env steps per second over a sliding window, for the moments of a curve. */
function paceOf(curve) {
  const { seconds, steps } = curve;
  const window = Math.max(2, seconds.at(-1) / 60);
  const xs = [];
  const ys = [];
  let before = 0;
  for (let i = 1; i < seconds.length; i += 1) {
    while (before + 1 < i && seconds[i] - seconds[before + 1] >= window) before += 1;
    const passed = seconds[i] - seconds[before];
    if (passed < 0.2) continue;
    xs.push(seconds[i]);
    ys.push((steps[i] - steps[before]) / passed);
  }
  return [xs, ys];
}

function showPace(status) {
  const { run, curve } = status;
  pace.show(...paceOf(curve));
  const learned = run.learning_seconds;
  const learning = learned > 0 ? `, of which ${span(learned)} went into learning` : "";
  byId("pace").querySelector(".summary").textContent =
    `${whole(run.steps_per_second)} steps/s in the last seconds, ` +
    `${whole(run.mean_steps_per_second)} since the first action. ` +
    `${span(run.seconds)} in all${learning}.`;
}

function showRun(status) {
  const { run, clients } = status;
  const name = run.title ?? run.algorithm ?? "plugrl-gym";
  byId("title").textContent = name;
  const envs = [...new Set(clients.map((client) => client.env_id ?? "unnamed envs"))];
  byId("about").textContent = [run.title === null ? null : run.algorithm, envs.join(", ")]
    .filter(Boolean)
    .join(" · ");
  document.title = run.mean_return === null ? name : `${amount(run.mean_return)} · ${name}`;
  const total = run.total_steps;
  byId("progress").hidden = total === null;
  if (total !== null) {
    byId("bar").max = Math.max(total, 1);
    byId("bar").value = run.steps;
    byId("left").textContent = `${whole(run.steps)} of ${whole(total)} env steps${timeLeft(run)}`;
  }
  const people = clients.length + status.other_clients;
  const here = clients.reduce((sum, client) => sum + client.envs, 0);
  showNumbers([
    ["Mean return", amount(run.mean_return),
      run.episodes > 0 && `of the last ${Math.min(run.episodes, 100)} episodes`],
    ["Env steps", whole(run.steps)],
    ["Steps/s", whole(run.steps_per_second)],
    ["Episodes", whole(run.episodes),
      run.mean_length !== null && `of ${amount(run.mean_length)} steps each`],
    ["Clients", whole(people), plural(here, "env", "envs")],
    ...(status.evaluation === null
      ? []
      : [["Evaluation", amount(status.evaluation.mean_return),
          `${plural(status.evaluation.episodes, "episode", "episodes")}`]]),
  ]);
  byId("footer").textContent =
    `${status.server}, listening since ${new Date(run.started * 1000).toLocaleString()}`;
}

function timeLeft(run) {
  const rate = run.mean_steps_per_second;
  if (ENDED.has(run.state) || rate === 0 || run.steps >= run.total_steps) return "";
  return `, about ${span((run.total_steps - run.steps) / rate)} left`;
}

function showHint(run) {
  byId("hint").hidden = run.state !== "new";
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  byId("command").textContent =
    `python -m plugrl_gym.rollout CartPole-v1 --url ${scheme}://${location.host}`;
}

function showClients(status) {
  const rows = status.clients.map((client) => [
    String(client.number),
    client.env_id ?? NONE,
    whole(client.envs),
    whole(client.steps),
    amount(client.mean_return),
    client.mode,
    ago(client.idle_seconds),
    client.address,
  ]);
  fill("clients", rows);
  const others = status.other_clients;
  const more = others ? `And ${whole(others)} more. ` : "";
  byId("clients-note").textContent =
    rows.length === 0
      ? "None is connected."
      : `${more}A return is the mean of a client's last 100 episodes.`;
}

function showBooks(status) {
  const errors = status.book_errors;
  byId("balance").dataset.balanced = String(errors.length === 0);
  byId("balance").textContent =
    errors.length === 0 ? "They balance." : `THEY DO NOT BALANCE: ${errors.join("; ")}`;
  const rows = Object.entries(status.books).map(([name, count]) => [
    name.replaceAll("_", " ").replace("[", " (").replace("]", ")"),
    whole(count),
  ]);
  fill("books", rows);
}

let shown = 0;

function showCamera(camera) {
  byId("camera").hidden = camera === null;
  if (camera === null || camera.number === shown) return;
  shown = camera.number;
  const where = `env ${camera.env} of client ${camera.client}`;
  byId("image").src = `/camera.png?${camera.number}`;
  byId("image").alt = `What ${where} sees now`;
  byId("camera").querySelector(".summary").textContent =
    `${where}, image ${camera.key}, ${camera.shape.join(" × ")}`;
}

function show(status) {
  showRun(status);
  showHint(status.run);
  showReturns(status.curve);
  showPace(status);
  showClients(status);
  showLatency(status.latency);
  showBooks(status);
  showCamera(status.camera);
}

function showLatency(latency) {
  const rows = Object.entries(latency ?? {}).map(([stage, at]) => [
    stage.replaceAll("_", " "),
    brief(at.p50),
    brief(at.p95),
    brief(at.p99),
  ]);
  fill("latency", rows);
  byId("latency-note").textContent =
    rows.length === 0
      ? "Nothing was measured yet."
      : "An answer is all that is above it; the client's time has the way there and back in it.";
}

// -- news --------------------------------------------------------------------------------------

let last = null; // the last status
let seen = 0; // when it came

function say(state, text) {
  const line = byId("state");
  line.dataset.state = state;
  if (line.textContent !== text) line.textContent = text;
}

class Refused extends Error {}

function sayLost(error) {
  const since = seen === 0 ? "" : `, last seen ${ago((Date.now() - seen) / 1000)}`;
  if (last !== null && ENDED.has(last.run.state)) {
    say(last.run.state, `${STATES[last.run.state]}; the server has ended${since}`);
    return;
  }
  const what = error instanceof Refused ? error.message : "Server not reachable";
  say("unreachable", `${what}${since}`);
  byId("main").classList.add("old");
}

async function ask() {
  const answer = await fetch(last === null ? "/status.json" : "/status.json?wait", {
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  if (answer.status === 401) {
    location.reload(); // to the form
    return new Promise(() => {});
  }
  if (!answer.ok) throw new Refused(`The server answers with HTTP ${answer.status}`);
  return answer.json();
}

const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function watch() {
  for (;;) {
    try {
      [last, seen] = [await ask(), Date.now()];
    } catch (error) {
      sayLost(error);
      await rest(PERIOD);
      continue;
    }
    byId("main").hidden = false;
    byId("main").classList.remove("old");
    say(last.run.state, STATES[last.run.state]);
    show(last);
    if (ENDED.has(last.run.state)) await rest(PERIOD);
  }
}

watch().catch((error) => {
  say("failed", "This page has a fault; load it again");
  byId("main").classList.add("old");
  throw error;
});
