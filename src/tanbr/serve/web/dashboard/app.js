// The page: asks the server every two seconds, and draws what changed.

import { act, get, hasAdminToken, keepToken } from "./api.js";
import { areas, around, bar, colourOf, html, lines, number, percent, size, tags } from "./charts.js";

const EVERY = 2000;
const SHOWN = 300; // slots
const RECENT = 10; // slots that the reward's line averages
const $ = (id) => document.getElementById(id);
const say = (id, text) => ($(id).textContent = text);

const seen = { state: null, slots: new Map(), windows: [] };

async function refresh() {
  try {
    const before = seen.state;
    const state = (seen.state = await get("/v1/state"));
    [...state.tasks, ...state.model.expert_names].forEach(colourOf); // in this order, before anything is drawn
    $("sign-in").hidden = true;
    const turned = !before || before.slot !== state.slot || versionsOf(before) !== versionsOf(state) || before.pinned !== state.pinned;
    const [latency, versions] = await Promise.all([
      get("/v1/latency"), turned ? get("/v1/versions") : null, fetchSlots(!before),
    ]);
    showState(state); // with the table of versions, never before it: a button acts on the version that it stands beside
    seen.windows = latency.windows;
    if (versions) showVersions(versions.versions, state);
    draw();
    status(state.pinned ? "held" : "live", state.pinned ? "pinned" : "live");
  } catch (error) {
    status("lost", error.status === 401 ? "locked" : "not reached");
    if (error.status === 401) $("sign-in").hidden = false;
    else if (!(error instanceof TypeError) && error.name !== "TimeoutError") console.warn(error);
  }
}

const versionsOf = (state) => state.models.map((one) => one.merge_version).join();

async function fetchSlots(all) {
  const { slots } = await get(`/v1/slots?limit=${all ? SHOWN : 20}`);
  const oldest = slots.at(-1);
  const gap = oldest && !all && !seen.slots.has(oldest.slot) && seen.slots.size > 0;
  if (gap) return fetchSlots(true);
  for (const slot of slots) seen.slots.set(slot.slot, slot);
  const kept = [...seen.slots.values()].sort((a, b) => a.slot - b.slot).slice(-SHOWN);
  seen.slots = new Map(kept.map((slot) => [slot.slot, slot]));
}

function showState(state) {
  const { model } = state;
  document.title = `tanbr · ${model.name}`;
  say("model", `${model.name} · ${model.experts} experts at ${model.sites} sites · ${model.precision}`);
  say("slot", state.slot);
  say("slot-more", state.slot_requests ? `${state.requests} of ${state.slot_requests} requests` : `${state.requests} requests`);
  say("version", state.models.map((one) => one.merge_version).join(", "));
  say("version-more", state.last_merge_seconds ? `merged in ${number(1000 * state.last_merge_seconds, 0)} ms` : "");
  const rewards = [...seen.slots.values()].map((slot) => slot.mean_reward).filter((reward) => reward !== null).slice(-RECENT);
  say("reward", rewards.length ? number(mean(rewards)) : "–");
  const sources = Object.entries(state.shares).map(([source, share]) => `${source} ${percent(share)}`);
  say("reward-more", sources.join(", ") || "no feedback yet");
  say("regret", number(state.estimated_regret));
  showMemory(model);
  showWhy(state);
  showCheck(state.check);
  showPractice(state);
  $("gain").hidden = !state.gain;
  if (state.gain) say("gain", sentence(state.gain.sentence));
  $("unpin").hidden = !state.administration || !state.pinned;
  $("end-slot").hidden = !state.administration;
  say("steering", state.administration ? "" : "administration is off: start the server with TANBR_ADMIN_TOKEN set to roll back or pin here");
  $("alarms").hidden = state.alarms.length === 0;
  $("alarms").querySelector("ul").replaceChildren(
    ...state.alarms.map((alarm) => html("li", {}, `${ago(alarm.time)}, slot ${alarm.slot}: ${alarm.text}`)),
  );
}

const PHASES = {
  "waiting for rewards": "The start blend is served: no reward has come yet that speaks for another one.",
  learning: "The router chooses the blend of each slot.",
  pinned: "An operator has pinned this blend; the router chooses nothing meanwhile.",
  fixed: "The start blend is served whatever comes: exploring is off.",
  "learning has cost reward": "The start blend is served again: slots that were held back earned more than the others.",
};

function showMemory({ loaded_bytes, spare_bytes, full_bytes, saves_from }) {
  const needed = saves_from === null ? "" : `; saves from ${saves_from} experts on`;
  say("memory", size(loaded_bytes));
  say("memory-more", `${spare_bytes ? `+ ${size(spare_bytes)} spare; ` : ""}un\u2011merged ${size(full_bytes)}${needed}`);
}

function showWhy({ phase, why, blend, model, models }) {
  say("phase", phase);
  showPanel(models, model.expert_names);
  say("why-sentence", sentence(why ? why.sentence : PHASES[phase] ?? ""));
  const most = largest(blend, model.expert_names).map(([name, share]) => [name, percent(share)]);
  $("why-blend").replaceChildren(models.length > 1 ? "" : tags(most));
}

// What the self-check at the start measured: the experts alone, then every way to serve them.
function showCheck(check) {
  $("check").hidden = !check;
  if (!check) return;
  const { alone, ways, taken, tasks } = check;
  const row = (name, bytes, rewards, kind = "") => {
    const kept = rewards.map((reward, v) => reward / Math.max(alone[v], 1e-9));
    const weakest = kept.indexOf(Math.min(...kept));
    return html("tr", { class: kind && "served" }, html("td", { class: "words" }, name, kind && ` · ${kind}`), html("td", {}, size(bytes)),
      html("td", {}, number(mean(rewards))), html("td", {}, percent(mean(rewards) / Math.max(mean(alone), 1e-9))),
      html("td", {}, rewards === alone ? "" : tags([[tasks[weakest], number(rewards[weakest])]])));
  };
  const rows = ways.map(({ method, models, rewards, bytes }) => row(`${models > 1 ? `${models} models` : "one model"}, ${method}`, bytes, rewards,
    method === taken.method && models === taken.models ? "taken" : ""));
  say("check-more", `on ${check.rows} rows of the history, before the first request`);
  $("check").querySelector("tbody").replaceChildren(row("experts alone, told the task", check.alone_bytes, alone), ...rows);
  say("advice", check.advice);
}

// What blends have earned on logged requests: every expert alone, by task, then what was tried last.
function showPractice({ practice, tasks, model }) {
  $("worth").hidden = !practice?.tasks.some((one) => one.rows);
  $("tried").hidden = !practice?.tried.length;
  if (!practice) return;
  const names = model.expert_names;
  const cell = ({ rewards, errors, expert }, k) => {
    if (!rewards.length) return html("td", { class: "soft" }, "–");
    const made = html("td", expert === k ? { class: "own" } : {}, number(rewards[k], 2), html("small", {}, ` ± ${number(errors[k], 2)}`));
    made.style.setProperty("--worth", percent(rewards[k]));
    return made;
  };
  say("worth-more", `reward of each expert alone on logged requests, with its 95% interval; the task's own expert, as found, is framed; ${practice.exercises} exercises`);
  $("worth").querySelector("thead").replaceChildren(html("tr", {}, ...["task", "rows", ...names].map((name) => html("th", {}, name))));
  $("worth").querySelector("tbody").replaceChildren(...practice.tasks.map((one, v) => html("tr", {}, html("td", {}, tasks[v]),
    html("td", { title: `${one.logged} in the log` }, one.rows), ...names.map((_, k) => cell(one, k)))));
  const points = (value) => number(100 * value, 1);
  const most = Math.max(...practice.tried.map(({ gain, error }) => Math.abs(gain) + error));
  say("tried-more", "points of reward over the even blend on the same requests, with 95% intervals");
  $("tried").querySelector("tbody").replaceChildren(...practice.tried.map((one) => {
    const gain = `${one.gain < 0 ? "−" : "+"}${points(Math.abs(one.gain))} ± ${points(one.error)}`;
    const mostly = largest(one.blend, names).slice(0, 2).map(([name, share]) => `${percent(share)} ${name}`);
    return html("tr", {}, html("td", { class: "words" }, one.why, html("small", {}, mostly.join(", "))), html("td", {}, bar(inOrder(one.blend, names), shares(one.blend, names))),
      html("td", {}, one.rows), html("td", {}, one.slot), html("td", {}, gain), html("td", {}, around(one.gain, one.error, most, gain)));
  }));
}

function showPanel(models, names) {
  const answered = models.reduce((sum, one) => sum + one.requests, 0);
  $("panel").hidden = models.length < 2;
  $("panel").tBodies[0].replaceChildren(...models.map((one) => html("tr", {},
    html("td", {}, String(one.merge_version)), html("td", {}, one.tasks.length ? tags(one.tasks.map((task) => [task])) : "what is like no task"),
    html("td", { class: "words" }, answered ? `${percent(one.requests / answered)} (${percent(one.expected)} expected)` : percent(one.expected)),
    html("td", {}, number(one.reward)), html("td", {}, bar(inOrder(one.blend, names), shares(one.blend, names))))));
}

const inOrder = (blend, names) => blend.map((share, k) => [names[k], share]).sort(([a], [b]) => colourOf(a) - colourOf(b)); // that of the tasks
const largest = (blend, names) => inOrder(blend, names).filter(([, share]) => share >= 0.005).sort(([, a], [, b]) => b - a);
const shares = (blend, names) => largest(blend, names).map(([name, share]) => `${percent(share)} ${name}`).join(", ");

function showVersions(versions, state) {
  const rows = versions.map((version) => {
    const served = state.models.some((one) => one.merge_version === version.merge_version);
    const label = shares(version.blend, state.model.expert_names);
    const buttons = html("td");
    if (state.administration && !served) buttons.append(action("Roll back", `Roll back to merge version ${version.merge_version}?`,
      "It is served until the slot ends, and the router is told that its blend was bad.", "rollback", { merge_version: version.merge_version }));
    if (state.administration) buttons.append(action("Pin", `Pin merge version ${version.merge_version}?`,
      "It is served until you unpin; the router chooses nothing meanwhile.", "pin", { merge_version: version.merge_version }));
    const kind = served ? "served" : version.good ? "" : "refused";
    const name = html("td", {}, String(version.merge_version), html("span", {}, kind && ` · ${kind}`));
    return html("tr", { class: kind }, name, html("td", {}, bar(inOrder(version.blend, state.model.expert_names), label)),
      html("td", {}, number(version.reward)), html("td", {}, version.requests), html("td", {}, ago(version.created)), buttons);
  });
  $("versions").tBodies[0].replaceChildren(...rows);
}

function draw() {
  const { state } = seen;
  if (!state) return;
  const slots = [...seen.slots.values()];
  const x = slots.map((slot) => `slot ${slot.slot}`);
  const over = (names, pick) => names.map((name, i) => ({ name, values: slots.map((slot) => pick(slot)[i]) })).sort((a, b) => colourOf(a.name) - colourOf(b.name));
  areas($("mix"), { x, series: over(state.tasks, (slot) => slot.task_mix), label: "task mix over slots" });
  areas($("blend"), { x, series: over(state.model.expert_names, (slot) => slot.blend), label: "blend over slots", steps: true });
  const rewards = slots.map((slot) => slot.mean_reward);
  const smooth = rewards.map((reward, at) => {
    const near = rewards.slice(Math.max(0, at - RECENT + 1), at + 1).filter((value) => value !== null);
    return reward === null && near.length === 0 ? null : mean(near);
  });
  const last = `mean of ${RECENT}`;
  lines($("rewards"), { x, series: [{ name: last, values: smooth }, { name: "slot", values: rewards, dots: true, hue: 7 }], label: "reward over slots", high: 1, format: (value) => number(value, 2) });
  const regrets = slots.map((slot) => slot.estimated_regret);
  lines($("regrets"), { x, series: [{ name: "regret", values: regrets }], label: "estimated regret over slots", least: 0.02 });
  drawLoad();
  const events = slots.filter((slot) => slot.note).slice(-50).reverse();
  if (events.length) $("events").replaceChildren(...events.map((slot) => html("li", {}, `slot ${slot.slot}, ${ago(slot.started)}: ${slot.note}`)));
}

function drawLoad() {
  const { windows, state } = seen;
  const x = windows.map((window) => new Date(1000 * window.time).toLocaleTimeString());
  const whole = (value) => number(value, value >= 10 ? 0 : 1);
  lines($("latencies"), { x, label: "latency", format: whole,
    series: [{ name: "median", values: windows.map((window) => window.p50_ms) }, { name: "99th percentile", values: windows.map((window) => window.p99_ms) }] });
  lines($("loads"), { x, label: "texts a second", format: whole, least: 2, series: [{ name: "texts a second", values: windows.map((window, at) => (at > 0 && at === windows.length - 1 ? null : window.texts / 10)) }] }); // the last is still open
  const last = windows.findLast((window) => window.requests > 0);
  say("latency", last ? `${whole(last.p50_ms)} ms` : "–");
  say("latency-more", last ? `99%: ${whole(last.p99_ms)} ms` : "");
  const past = windows.slice(-4, -1);
  say("load", past.length ? `${whole(past.reduce((sum, window) => sum + window.texts, 0) / (10 * past.length))} texts/s` : "–");
  say("load-more", `${state.queue} waiting, ${state.answered} answered`);
}

function action(name, title, says, path, body) {
  const button = html("button", { type: "button" }, name);
  button.onclick = () => confirm(title, says, path, body);
  return button;
}

function confirm(title, says, path, body) {
  const dialog = $("confirm");
  const [form, field, wrong] = [dialog.querySelector("form"), dialog.querySelector("input"), dialog.querySelector(".wrong")];
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = says;
  field.value = wrong.textContent = "";
  field.required = !hasAdminToken();
  field.parentElement.hidden = hasAdminToken();
  dialog.querySelector(".cancel").onclick = () => dialog.close();
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      await act(path, body, field.value);
      dialog.close();
      seen.state = null;
      await refresh();
    } catch (error) {
      wrong.textContent = error.message;
      field.required = !hasAdminToken();
      field.parentElement.hidden = hasAdminToken();
    }
  };
  dialog.showModal();
}

function status(kind, text) {
  $("status").className = `pill ${kind}`;
  say("status", text);
}

function ago(time) {
  const seconds = Math.max(0, Date.now() / 1000 - time);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

const sentence = (text) => (text.charAt(0).toUpperCase() + text.slice(1)).replace(/[^.!?]$/, "$&.");
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

$("sign-in").onsubmit = (event) => {
  event.preventDefault();
  keepToken($("token").value);
  refresh();
};
$("unpin").onclick = () => confirm("Unpin?", "The router chooses again, from the next slot on.", "unpin");
$("end-slot").onclick = () => confirm("End the slot now?", "The router learns from it and chooses the next blend.", "slot");
new ResizeObserver(draw).observe(document.body);
(async function watch() {
  if (!document.hidden) await refresh();
  setTimeout(watch, EVERY);
})();
