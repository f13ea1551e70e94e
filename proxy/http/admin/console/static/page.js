// The console's page. It shows what the stream of this sidecar says, and changes nothing.
//
// Each event has the whole state of its moment. The page makes a new tree of nodes of it, and morphs the old tree to the
// new one, so that focus, selection and scrolling stay. A finding is known by its subject and title, a row by its subject.
// Names of exchanges, queues and clients are a stranger's choice:
// they get into the page by createTextNode and setAttribute only, and into addresses by encodeURIComponent only.
"use strict";

const FAILED = ["nacked", "unroutable", "unavailable", "rejected", "invalid", "unknown"];
const LEVELS = ["critical", "warning", "note"];
const SVG_TAGS = new Set(["svg", "circle", "rect", "polyline", "line", "title"]);
const MOST_BUFFERED = 1 << 24;
const SILENCE = 5000;   // milliseconds without anything after which a stream is given up: the sidecar writes each second
const MOST_ROWS = 20;   // of tables that stand above others

let snapshot = null;    // the last event
let trouble = "";       // why there is no stream; empty if there is one
let about = null;       // what /console/about says
let runbook = null;     // the runbook's Markdown, or why there is none
let asked = {};         // answers to questions of the view that is shown
const kept = {};        // those that stay
let stream = null;      // the AbortController of the stream

// Nodes

function h(tag, attributes, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : document.createTextNode(child));
  }
  return node;
}

function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const name of old.getAttributeNames()) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const name of made.getAttributeNames()) {
    const value = made.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of ["onclick", "onsubmit"]) if (old[name] !== made[name]) old[name] = made[name];
  const then = [...made.childNodes], wanted = new Set(then.map(keyOf));
  for (const child of [...old.childNodes]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
  const known = new Map([...old.childNodes].map((child) => [keyOf(child), child]));
  then.forEach((child, at) => {
    const now = old.childNodes[at], same = keyOf(child) ? known.get(keyOf(child)) : now;
    if (!same || keyOf(same) !== keyOf(child)) { old.insertBefore(child, now || null); return; }
    if (same !== now) old.insertBefore(same, now);
    morph(same, child);
  });
  while (old.childNodes.length > then.length) old.lastChild.remove();
}

// A node with a key stays the same node when others come, go or change places, and never becomes another one.
const keyOf = (node) => node.dataset && node.dataset.key;

// Words

const count = (n, one, many) => `${whole(n)} ${n === 1 ? one : many || one + "s"}`;
const whole = (n) => (n === null || n === undefined ? "?" : Math.round(n).toLocaleString("en"));
const rate = (n) => (n === null || n === undefined ? "?" : `${n >= 100 ? whole(n) : n.toFixed(1)}/s`);
const percent = (n) => (100 * n).toFixed(n && n < 0.1 ? 2 : 1) + " %";
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function time(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (!seconds) return "0 s";
  if (seconds < 1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const clock = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 19) + " UTC";
const emptyIn = (lag) => (lag.ready === null ? "?" : lag.ready === 0 ? "empty" : lag.seconds_to_empty === null ? "never at this rate" : time(lag.seconds_to_empty));
const short = (id) => (id || "").slice(0, 8);

// Parts of the page

const place = (kind, of) => `#/${kind}/${encodeURIComponent(of.vhost)}/${encodeURIComponent(of.exchange)}`;
const name = (text) => h("span", { class: "name" }, text);
const link = (kind, of) => h("a", { href: place(kind, of), class: "name" }, of.exchange);
const cut = (list, of, what) => of > list.length && h("p", { class: "soft" }, `${whole(of - list.length)} more ${what} are not shown.`);

function tiles(...pairs) {
  return h("dl", { class: "tiles" }, pairs.map(([title, value, more]) =>
    h("div", {}, h("dt", {}, title), h("dd", {}, value, more && h("small", {}, " ", more)))));
}

function table(caption, titles, rows, keys = []) {
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, titles.map((t) => h("th", { scope: "col", class: t.startsWith("#") && "number" }, t.replace("#", ""))))),
      h("tbody", {}, rows.map((row, number) => h("tr", { "data-key": keys[number] }, row.map((cell, at) =>
        h(at ? "td" : "th", { scope: at ? null : "row", class: at ? titles[at].startsWith("#") && "number" : "name" }, cell)))))));
}

function chart(title, unit, series, ends) {
  const all = series.flatMap((s) => s.values).filter((v) => v !== null && v !== undefined);
  const most = Math.max(...all, 0), width = 300, height = 80;
  const last = (s) => [...s.values].reverse().find((v) => v !== null && v !== undefined);
  const lines = series.flatMap((s) => runs(s.values).map((points) =>
    h("polyline", { class: s.style, "stroke-width": 2, "vector-effect": "non-scaling-stroke", points: points.map(([x, v]) =>
      `${((x / Math.max(s.values.length - 1, 1)) * width).toFixed(1)},${(height - 2 - (most ? v / most : 0) * (height - 6)).toFixed(1)}`).join(" ") })));
  const said = series.map((s) => `${s.name} ${last(s) === undefined ? "none" : unit(last(s))}`).join(", ");
  return h("figure", {},
    h("figcaption", {}, h("b", {}, title), ` ${all.length ? `up to ${unit(most)}` : "nothing yet"}`),
    h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${said}` },
      h("line", { class: "grid-line", x1: 0, x2: width, y1: height - 1, y2: height - 1 }), lines),
    h("p", { class: "axis" }, h("span", {}, ends[0]), h("span", {}, ends[1])),
    h("p", { class: "legend" }, series.map((s) => h("span", {},
      h("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { class: s.style, width: 10, height: 10 })),
      `${s.name} ${last(s) === undefined ? "none" : unit(last(s))}`))));
}

function runs(values) {
  const found = [];
  let run = [];
  values.forEach((v, x) => {
    if (v !== null && v !== undefined) run.push([x, v]);
    else if (run.length) { found.push(run); run = []; }
  });
  return (run.length ? [...found, run] : found).map((points) => (points.length === 1 ? [points[0], [points[0][0] + 0.5, points[0][1]]] : points));
}

const good = (rates) => sum(Object.entries(rates).filter(([what]) => !FAILED.includes(what)).map(([, n]) => n));
const failed = (rates) => sum(Object.entries(rates).filter(([what]) => FAILED.includes(what)).map(([, n]) => n));

function ratesChart(steps, title) {
  return chart(title, rate, [
    { name: "succeed", style: "one", values: steps.map((s) => good(s.rates)) },
    { name: "fail", style: "three", values: steps.map((s) => failed(s.rates)) },
  ], since(steps));
}

const since = (steps) => [steps.length ? clock(steps[0].ended) : "", steps.length ? clock(steps[steps.length - 1].ended) : ""];

function latencyCharts(steps) {
  return ["amqp", "http"].map((ingress) => chart(`Confirm latency, ${ingress.toUpperCase()}`, time, [
    { name: "p50", style: "one", values: steps.map((s) => s.latency[ingress][0]) },
    { name: "p99", style: "two", values: steps.map((s) => s.latency[ingress][1]) },
  ], since(steps)));
}

function lagCharts(lag) {
  const ends = [clock(lag.since), clock(lag.until)];
  return h("div", { class: "charts" },
    chart("Messages", whole, [{ name: "wait", style: "one", values: lag.ready }, { name: "at work", style: "two", values: lag.unacked }], ends),
    chart("Rates", rate, [{ name: "come in", style: "one", values: lag.publish_rate }, { name: "are done", style: "two", values: lag.consume_rate }], ends),
    chart("Empty in", time, [{ name: "at the rates of that time", style: "one", values: lag.seconds_to_empty }], ends));
}

function finding(it, away = true) {
  const level = LEVELS[it.severity];
  return h("li", { class: level, "data-key": JSON.stringify([it.kind, it.vhost, it.exchange, it.title]) },
    h("h2", {}, h("span", { class: "level" }, level), it.title),
    h("p", {}, it.text),
    h("p", {}, h("a", { href: `#/runbook/${it.section}` }, `What to do: ${it.section.replaceAll("-", " ")}`),
      away && it.kind && [" · ", h("a", { href: place(it.kind, it) }, `See the ${it.kind}`)]));
}

function exchangesTable(found) {
  if (!found.of) return h("p", { class: "soft" }, "No exchange is known yet: a sidecar reads one when it is first published to, or when route names it.");
  return [table("Exchanges that this sidecar knows", ["exchange", "virtual host", "publishes", "#destinations", "#succeed", "#fail", "last change"],
    found.shown.map((e) => [link("exchange", e), name(e.vhost),
      h("span", { class: { routed: "good", "not routed": "bad", refused: "bad" }[e.state] }, e.state, e.why && ` (${e.why})`, e.change && `, ${change(e.change)}`),
      whole(e.destinations), rate(good(e.rates)), rate(failed(e.rates)),
      e.changed_at === null ? "none" : `${time(snapshot.overview.at - e.changed_at)} ago, ${percent(e.moved)} moved`]),
    found.shown.map((e) => place("exchange", e))),
  cut(found.shown, found.of, "exchanges")];
}

function groupsTable(found) {
  if (!found.of) return h("p", { class: "soft" }, "No group has a member at this sidecar.");
  return [table("Groups with members at this sidecar", ["group", "virtual host", "#members", "#shards", "#waiting", "#in", "#out", "empty in", "state"],
    found.shown.map((g) => [link("group", g), name(g.vhost), `${whole(g.members)} (${whole(g.here)} here)`, whole(g.shards), whole(g.ready),
      rate(g.publish_rate), rate(g.consume_rate), emptyIn(g),
      [g.exact === false ? "not exact" : g.exact ? "exact" : "not read yet", g.moving ? `, ${count(g.moving, "move")}` : "",
        g.keys_stopped + g.keys_retried ? `, ${count(g.keys_stopped + g.keys_retried, "key")} blocked` : ""].join("")]),
    found.shown.map((g) => place("group", g))),
  cut(found.shown, found.of, "groups")];
}

// For what stands beyond the limit of a table.
function search(kind, found) {
  return found.of > found.shown.length && [
    h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); ask("search", `console/search?kind=${kind}&contains=${encodeURIComponent(event.target.elements.text.value)}`); } },
      h("label", {}, `Name of one of all ${whole(found.of)}, or a part of it`, h("input", { name: "text", autocomplete: "off", spellcheck: "false" })), h("button", {}, "Search")),
    answer("search", (a) => a.of ? [h("ul", {}, a.shown.map((e) => h("li", { "data-key": place(kind, e) }, link(kind, e), " in ", name(e.vhost)))), cut(a.shown, a.of, `${kind}s`)]
      : h("p", {}, "No name has it."))];
}

// Views: each returns the nodes of the main part

const views = {
  ""() {
    const o = snapshot.overview, f = o.findings;
    return [
      h("h1", { tabindex: "-1" }, "What is wrong now"),
      f.of ? [h("ul", { class: "plain findings" }, f.shown.map((it) => finding(it))), cut(f.shown, f.of, "findings")]
        : h("p", { class: "fine" }, "Nothing, as far as this sidecar sees. What only all sidecars together show is left to the alerts."),
      tiles(["Publishes succeed", rate(good(o.rates))], ["Publishes fail", rate(failed(o.rates))], ["Wait for a confirm", whole(o.in_flight)],
        ["AMQP clients", whole(o.sessions)], ["Exchanges", whole(o.exchanges.of)], ["Groups here", whole(o.groups.of)]),
      h("h2", {}, "The last ten minutes"),
      h("div", { class: "charts" }, ratesChart(o.steps, "Publishes"), latencyCharts(o.steps)),
      h("h2", {}, "Groups"), groupsTable(o.groups),
      h("h2", {}, "Exchanges"), exchangesTable(o.exchanges),
      h("h2", {}, "Checks"),
      table("The checks of /readyz", ["check", "result"], Object.entries(o.checks).map(([check, why]) =>
        [check, h("span", { class: why ? "bad" : "good" }, why || "ok")])),
      o.notes.length > 0 && h("ul", {}, o.notes.map((note) => h("li", {}, note))),
    ];
  },

  exchanges() {
    return [h("h1", { tabindex: "-1" }, "Exchanges"), search("exchange", snapshot.overview.exchanges), exchangesTable(snapshot.overview.exchanges)];
  },

  groups() {
    return [h("h1", { tabindex: "-1" }, "Consumer groups"), search("group", snapshot.overview.groups), groupsTable(snapshot.overview.groups)];
  },

  exchange(vhost, exchange) {
    const e = snapshot.detail, of = { vhost, exchange };
    const title = h("h1", { tabindex: "-1" }, "Exchange ", name(exchange), h("small", {}, " in ", name(vhost)));
    if (snapshot.fault) return [title, h("p", { class: "bad" }, snapshot.fault)];
    if (!e) {
      return [title, h("p", {}, "This sidecar has not read an exchange of this name."),
        h("button", { onclick: () => ask("look", `rings/${encodeURIComponent(vhost)}/${encodeURIComponent(exchange)}`) }, "Have it read"), answer("look", () => null)];
    }
    const state = snapshot.overview.exchanges.shown.find((each) => each.vhost === vhost && each.exchange === exchange);
    return [title,
      findingsOf("exchange", of),
      tiles(["Publishes are", state ? state.state : e.passed ? "passed" : "routed", state && state.why], ["Succeed", rate(good(e.rates))], ["Fail", rate(failed(e.rates))],
        ["Destinations", whole(e.destinations_of)], ["Hashes", e.hashed || "nothing"], ["Bindings read", `${time(e.age_seconds)} ago`, e.restored && "(restored)"]),
      h("h2", {}, "Where a key goes"),
      h("form", { onsubmit: (event) => { event.preventDefault(); ask("key", `rings/${encodeURIComponent(vhost)}/${encodeURIComponent(exchange)}?key=${encodeURIComponent(event.target.elements.key.value)}`); } },
        h("label", {}, "Hashed value, such as a routing key", h("input", { name: "key", autocomplete: "off", spellcheck: "false" })), h("button", {}, "Show")),
      answer("key", (a) => a.key ? h("p", {}, "Slot ", whole(a.key.slot), a.key.passed ? ` is left to the exchange itself (${a.key.passed}). The ring's owner of it is ` : " goes to ", name(a.key.owner.name), ". ",
        a.key.runner_up ? ["If that queue left, it would go to ", name(a.key.runner_up.name), "."] : "There is no other queue.")
        : a.upstream && a.upstream.ring_of_key ? h("p", {}, "It goes to the ring of ", name(a.upstream.ring_of_key), ".") : h("p", {}, "No ring of this exchange gets it.")),
      h("h2", {}, "The ring"), ring(e),
      h("h2", {}, "The last ten minutes"),
      h("div", { class: "charts" }, ratesChart(e.steps, "Publishes"), latencyCharts(snapshot.overview.steps)),
      h("p", { class: "soft" }, "The latency is that of all exchanges of this sidecar together."),
      h("h2", {}, "Outcomes"),
      Object.keys(e.totals).length ? table("Publishes by outcome", ["outcome", "#now", "#since the start"], Object.keys(e.totals).sort().map((what) => [what, rate(e.rates[what] || 0), whole(e.totals[what])]))
        : h("p", { class: "soft" }, "Nothing was published to it through this sidecar."),
      h("h2", {}, "Changes of the ring"),
      e.changes.length ? table("The last changes", ["when", "moved", "how it differs", "why it was read"], [...e.changes].reverse().map((c) => [c.at, percent(c.moved), c.what, c.why]))
        : h("p", { class: "soft" }, "None since it was first read."),
      notes(e),
    ];
  },

  group(vhost, exchange) {
    const title = h("h1", { tabindex: "-1" }, "Group ", name(exchange), h("small", {}, " in ", name(vhost)));
    const path = `groups/${encodeURIComponent(vhost)}/${encodeURIComponent(exchange)}`;
    const g = snapshot.detail || (asked.figures && asked.figures.answer);
    const reader = [h("button", { onclick: () => ask("figures", path) }, "Read its figures now"), answer("figures", () => null)];
    if (snapshot.fault) return [title, h("p", { class: "bad" }, snapshot.fault)];
    if (!g) return [title, h("p", {}, "No client of this sidecar is a member, so it knows nothing of the members."), reader];
    const titles = new Map(g.members.map((m) => [m.id, m.client || m.id]));
    return [title,
      findingsOf("group", { vhost, exchange }),
      tiles(["Messages wait", whole(g.lag.ready)], ["At work", whole(g.lag.unacked)], ["Come in", rate(g.lag.publish_rate)], ["Are done", rate(g.lag.consume_rate)],
        ["Empty in", emptyIn(g.lag)], ["Order", g.exact === null ? "not read yet" : g.exact ? "exact" : "not exact"]),
      h("p", { class: "soft" }, g.figures_age_seconds === null ? "The figures have not been read yet. " : `The oldest figure is ${time(g.figures_age_seconds)} old. `, reader),
      g.reasons.length + g.warnings.length > 0 && h("ul", {}, g.reasons.map((r) => h("li", {}, "Not exact: ", r)), g.warnings.map((w) => h("li", {}, "Warning: ", w))),
      g.membership && h("p", { class: "warn" }, "Not balanced: ", g.membership),
      h("h2", {}, "The lag of the last hour"), g.lag_history ? lagCharts(g.lag_history) : h("p", { class: "soft" }, "No sample has been taken yet: there is one every 15 s, of 50 groups at most."),
      h("h2", {}, "Members and shards"), members(g),
      h("h2", {}, "Moves"),
      g.moves.length ? table("Shards that are about to move", ["shard", "from", "to", "#for", "why it has not moved"], g.moves.slice(0, MOST_ROWS).map((m) =>
        [name(m.shard), titles.get(m.from) || (m.from ? "a member that has left" : "nobody"), titles.get(m.to) || (m.to ? "?" : "nobody"), time(m.since_seconds), m.why]))
        : h("p", { class: "soft" }, "Each shard is where it should be."),
      cut(g.moves.slice(0, MOST_ROWS), g.moves_of || 0, "moves"),
      (g.refused || []).length > 0 && table("Consumers that the broker refuses", ["client", "shard", "#for", "why"], g.refused.slice(0, MOST_ROWS).map((r) => [name(r.client), name(r.shard), time(r.since_seconds), r.why])),
      cut((g.refused || []).slice(0, MOST_ROWS), g.refused_of || 0, "refused consumers"),
      (g.leaving || []).length > 0 && table("Messages of clients that have left", ["client", "shard", "#unacked"], g.leaving.slice(0, MOST_ROWS).map((l) => [name(l.client), name(l.shard), whole(l.unacked)])),
      g.log && g.log.length > 0 && table("What has changed of late", ["when", "what"], g.log.slice(0, MOST_ROWS).map((l) => [clock(l.at), l.what])),
      (g.keys || []).length > 0 && [h("h2", {}, "Keys that are blocked"), table("Keys whose first message waits or failed, the longest first", ["key", "shard", "state", "#since", "#tries", "#behind it", "client"],
        g.keys.map((k) => [name(k.key || k.key_hash), name(k.shard), k.state, time(k.since_seconds), whole(k.tries), whole(k.waiting), name(k.client)]))],
      h("h2", {}, "Shards"), shards(g, titles),
      cut(g.shards, g.shards_of || 0, "shards"),
    ];
  },

  fleet() {
    return [h("h1", { tabindex: "-1" }, "The fleet"),
      h("p", {}, "The sidecars that are connected to the broker, by its list of connections. The broker is asked only when you press the button, at most every 10 s."),
      h("button", { onclick: () => ask("fleet", "console/fleet", kept) }, "Ask the broker"),
      answer("fleet", (fleet) => fleet.fault ? h("p", { class: "bad" }, fleet.fault) : [
        !fleet.sees_all && h("p", { class: "warn" }, "The list is not whole: the user of management_url lacks the tag monitoring, so it sees its own connections only."),
        tiles(["Sidecars", whole(fleet.sidecars_of)], ["Connections", whole(fleet.connections)], ["RabbitMQ", fleet.broker.rabbitmq_version || "?"], ["Erlang", fleet.broker.erlang_version || "?"], ["Cluster", fleet.broker.cluster_name || "?"]),
        table("Sidecars", ["host", "id", "version", "#ring format", "#connections"], fleet.sidecars.map((s) =>
          [[name(s.host), s.own && " (this one)"], name(s.id), s.version, s.ring_format, whole(s.connections)])),
        cut(fleet.sidecars, fleet.sidecars_of, "sidecars"),
        fleet.others.length > 0 && table("Connections of no sidecar: programs that use the broker itself", ["user", "#connections"], fleet.others.map((u) => [name(u.user), whole(u.connections)]))], kept)];
  },

  about() {
    if (!about) { about = {}; get("console/about").then((told) => { about = told; draw(); }); }
    return [h("h1", { tabindex: "-1" }, "This sidecar"),
      about.problem ? h("p", { class: "bad" }, about.problem) : about.sidecar && [
        table("What runs", ["what", "value"], [["host", about.host], ["id", about.sidecar], ["ringproxy", about.version], ["ring format", String(about.ring_format)], ["hot modules", about.hot_loop], ["Python", about.python], ["default virtual host", about.default_vhost]]),
        h("h2", {}, "Settings"), h("p", { class: "soft" }, "Passwords are hidden."), h("pre", { tabindex: "0" }, about.settings)]];
  },

  runbook(section) {
    if (runbook === null) readRunbook();
    const anchor = (title) => title.toLowerCase().replaceAll(" ", "-");
    const found = runbook.text && runbook.text.split(/^## /m).slice(1).find((part) => anchor(part.split("\n", 1)[0]) === section);
    return [h("h1", { tabindex: "-1" }, found ? found.split("\n", 1)[0] : section || "Runbook"),
      found ? markdown(found.slice(found.indexOf("\n"))) : runbook.problem ? h("p", { class: "bad" }, `The runbook cannot be read: ${runbook.problem}.`)
        : h("p", {}, runbook.text ? "The runbook has no such section." : "Loading."),
      h("p", { class: "soft" }, "From docs/how-to/troubleshoot.md of this release. ", h("a", { href: "#/" }, "Back to what is wrong now"))];
  },
};

function findingsOf(kind, of) {
  const found = snapshot.overview.findings.shown.filter((f) => f.kind === kind && f.vhost === of.vhost && f.exchange === of.exchange);
  return found.length > 0 && h("ul", { class: "plain findings" }, found.map((it) => finding(it, false)));
}

const hue = (at) => `hsl(${((at * 137.5) % 360).toFixed(0)} 60% ${at % 2 ? 62 : 48}%)`;

function ring(e) {
  if (!e.destinations.length) return h("p", { class: "soft" }, "It has no ring.");
  const observed = (d) => (e.sent ? d.sent / e.sent : 0);
  const circle = (r, width, share) => {
    const round = 2 * Math.PI * r;
    let at = 0;
    return e.destinations.map((d, i) => {
      const part = share(d) * round, drawn = h("circle", { cx: 100, cy: 100, r, fill: "none", stroke: hue(i), "stroke-width": width, transform: "rotate(-90 100 100)",
        "stroke-dasharray": `${part.toFixed(2)} ${(2 * round).toFixed(2)}`, "stroke-dashoffset": (-at).toFixed(2) }, h("title", {}, `${d.name}: ${percent(share(d))}`));
      at += part;
      return part > 0 && drawn;
    });
  };
  const most = Math.max(...e.destinations.map((d) => Math.max(d.share, observed(d))));
  return h("div", { class: "ring" },
    h("svg", { viewBox: "0 0 200 200", role: "img", "aria-label": `The ring: outside the share of the slots, inside the share of ${count(e.sent, "publish", "publishes")}; the table has the numbers` },
      circle(84, 26, (d) => d.share), e.sent > 0 && circle(54, 20, observed)),
    h("div", {}, table("Share by destination: the bar is expected, the mark is observed", ["destination", "share", "#expected", "#observed", "#sent", "#weight"],
      e.destinations.map((d, i) => [
        [h("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { width: 10, height: 10, fill: hue(i) })), d.name, d.lane && h("small", {}, ` by ${d.lane}`), d.too_light && h("small", { class: "warn" }, " too light")],
        h("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, h("rect", { class: "track", width: 100, height: 10 }),
          h("rect", { width: ((100 * d.share) / most).toFixed(1), height: 10, fill: hue(i) }), e.sent > 0 && h("rect", { class: "mark", x: Math.min((100 * observed(d)) / most, 98.5).toFixed(1), width: 1.5, height: 10 })),
        percent(d.share), e.sent ? percent(observed(d)) : "none", whole(d.sent), whole(d.weight)])),
    cut(e.destinations, e.destinations_of, "destinations"),
    h("p", { class: "soft" }, "Observed are the publishes that this sidecar has sent since its start, or would have sent in shadow.")));
}

function change(c) {
  const way = `changes from generation ${c.from} to ${c.to}`;
  if (c.lanes_bound < c.lanes) return `${way}: ${c.lanes_bound} of ${count(c.lanes, "lane")} bound`;
  return c.old_shards ? `${way}: ${c.old_shards - c.old_shards_left} of ${count(c.old_shards, "old shard")} drained` : `${way}: ${count(c.old_shards_left, "old shard")} left to drain`;
}

function notes(e) {
  const found = [
    ...e.dead_letters.map(([queue, cause]) => [name(queue), ` would dead-letter under its own name (${cause})`]),
    ...e.ignored_bindings.map((b) => ["The binding of ", name(b.destination.name), ` is ignored: ${b.reason}`]),
    ...e.duplicate_bindings.map((d) => [name(d.name), " is bound more than once"]),
    ...e.not_lanes.map((l) => [name(l.name), ` is no lane: ${l.reason}`]),
    ...(e.change ? [[`It ${change(e.change)}`]] : []),
    ...(e.generation > 1 ? [[`Generation ${e.generation} of the shards is the ring`]] : []),
    ...Object.entries(e.not_open || {}).map(([group, shards]) => [name(group), ` may not consume ${shards.length} of its shards yet`]),
    ...(e.other_generations || []).map((g) => [`Generation ${g.generation} is bound, ${g.bound} times`]),
    ...(e.upstream ? [[`An upstream exchange of ${e.upstream.rings.join(", ")}`]] : []),
  ];
  return found.length > 0 && [h("h2", {}, "Notes"), h("ul", {}, found.slice(0, 100).map((each) => h("li", {}, each)))];
}

function stateOf(shard, moving) {
  const words = [];
  let style = "";
  if (shard.paused) { style = "paused"; words.push("paused"); }
  else if (shard.waiting) { style = "stuck"; words.push("no member gets its messages"); }
  else if (shard.ready === 0) { style = "idle"; words.push("nothing waits"); }
  else if (shard.ready !== null) {
    style = shard.seconds_to_empty !== null && shard.seconds_to_empty <= 60 ? "some" : "much";
    words.push(`${whole(shard.ready)} wait, empty in: ${emptyIn(shard)}`);
  } else words.push("no figures");
  if (moving) words.push("about to move");
  return [`${style}${moving ? " moving" : ""}`.trim(), words.join(", ")];
}

const label = (shard) => (/\d+$/.exec(shard) || [shard.slice(-4)])[0];

function members(g) {
  const moving = new Set(g.moves.map((m) => m.shard)), by = new Map(g.members.map((m) => [m.id, []])), free = [];
  for (const shard of g.shards) (by.get(shard.holder) || free).push(shard);
  const cells = (list) => h("ul", { class: "cells" }, list.map((shard) => {
    const [style, words] = stateOf(shard, moving.has(shard.shard));
    return h("li", { class: style, title: `${shard.shard}: ${words}` }, label(shard.shard), h("span", { class: "hidden" }, ` ${shard.shard}, ${words}`));
  }));
  return [
    h("div", { class: "legend" }, h("span", {}, "Colours: "), h("ul", { class: "cells", "aria-label": "Legend" }, [["idle", "nothing waits"], ["some", "empty within a minute"], ["much", "longer, or never"], ["stuck", "no member gets them"], ["moving", "about to move"], ["paused", "paused"], ["", "no figures"]].map(([style, words]) => h("li", { class: style }, words)))),
    g.joined === false && h("p", { class: "soft" }, "This sidecar has no member, so it does not know who has which shard."),
    h("ul", { class: "plain members" }, g.members.map((m) => h("li", {},
      h("h3", {}, name(m.client || m.id)),
      h("p", { class: "soft" }, `at ${m.host}${m.here ? " (this sidecar)" : ""}, since ${m.since}, has ${whole(m.shards.length)} of ${whole(m.wanted)}, ${whole(m.unacked)} unacked`,
        m.in_series && ", in series", m.stalled && h("b", { class: "bad" }, ", gets no shard as it did not ack")),
      cells(by.get(m.id) || []))),
    free.length > 0 && h("li", {}, h("h3", {}, g.joined === false ? "Shards" : "Nobody"), cells(free))),
    cut(g.members, g.members_of || 0, "members"),
  ];
}

function shards(g, titles) {
  const moving = new Set(g.moves.map((m) => m.shard));
  const worst = [...g.shards].sort((a, b) => b.waiting - a.waiting || (b.ready === null ? -1 : b.ready) - (a.ready === null ? -1 : a.ready));
  return table("Shards, the largest lag first", ["shard", "member", "#waiting", "#unacked", "#in", "#out", "empty in", "#redelivered", "#worst", "state"],
    worst.map((s) => [s.shard, g.joined === false ? `${whole(s.consumers)} consumers` : titles.get(s.holder) || (s.holder ? "a member that has left" : "nobody"),
      whole(s.ready), whole(s.unacked), rate(s.publish_rate), rate(s.consume_rate), emptyIn(s), whole(s.redelivered), whole(s.worst), stateOf(s, moving.has(s.shard))[1] + (s.paused ? ` by ${s.paused.by} since ${s.paused.since}` : "")]));
}

// Markdown, as far as the runbook uses it; a link is shown as its text.
function markdown(text) {
  const inline = (line) => line.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").split(/(`[^`]*`|\*\*[^*]*\*\*)/).map((part) =>
    part.startsWith("`") ? h("code", {}, part.slice(1, -1)) : part.startsWith("**") ? h("b", {}, part.slice(2, -2)) : part);
  const cells = (line) => line.replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  return text.split(/(^```[^]*?^```$)/m).flatMap((piece) => {
    if (piece.startsWith("```")) return [h("pre", { tabindex: "0" }, piece.replace(/^```.*\n|\n?```$/g, ""))];
    return piece.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").split(/\n\s*\n/).map((part) => part.trim()).filter(Boolean).map((part) => {
      const lines = part.split("\n");
      if (part.startsWith("|")) {
        return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {}, h("thead", {}, h("tr", {}, cells(lines[0]).map((c) => h("th", { scope: "col" }, c)))),
          h("tbody", {}, lines.slice(2).map((line) => h("tr", {}, cells(line).map((c) => h("td", {}, c)))))));
      }
      if (part.startsWith("- ")) return h("ul", {}, part.split(/\n(?=- )/).map((item) => h("li", {}, inline(item.slice(2).replaceAll("\n", " ")))));
      return h("p", {}, inline(lines.join(" ")));
    });
  });
}

// Questions that a person asks

async function get(path) {
  try {
    const response = await fetch(path), told = await response.json();
    return response.ok ? told : { problem: told.detail || `the sidecar answered ${response.status}` };
  } catch (error) {
    return { problem: `the sidecar does not answer (${error.message})` };
  }
}

async function readRunbook() {
  runbook = {};
  try {
    const response = await fetch("console/runbook.md");
    runbook = response.ok ? { text: await response.text() } : { problem: `the sidecar answered ${response.status}` };
  } catch (error) {
    runbook = { problem: `the sidecar does not answer (${error.message})` };
  }
  draw();
}

async function ask(what, path, of = asked) {
  of[what] = { waits: true };
  draw();
  const told = await get(path);
  of[what] = told.problem ? { problem: told.problem } : { answer: told, at: Date.now() / 1000 };
  draw();
}

// An answer has its time, as it does not change as the rest of the page does.
function answer(what, show, of = asked) {
  const a = of[what];
  return h("div", { role: "status" }, a && (a.waits ? h("p", { class: "soft" }, "Asking.") : a.problem ? h("p", { class: "bad" }, a.problem)
    : [h("p", { class: "soft" }, `As of ${clock(a.at)}.`), show(a.answer)]));
}

// Where we are, and the stream

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return Object.hasOwn(views, parts[0]) ? parts : [""];
}

function draw() {
  drawStatus();   // before a view, which may fail
  const parts = route(), main = document.getElementById("main"), made = main.cloneNode(false);
  const needsNothing = ["about", "runbook", "fleet"].includes(parts[0]);
  const nodes = snapshot || needsNothing ? views[parts[0]](...parts.slice(1)) : [h("h1", { tabindex: "-1" }, "ringproxy"), h("p", {}, trouble || "Waiting for the sidecar.")];
  // Each part of a view has its place, also while it has nothing, or one that appears would replace a form after it.
  made.append(...nodes.map((part) => (part instanceof Node ? part : h("div", { hidden: !part }, part))));
  const focused = document.activeElement;
  morph(main, made);
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });   // it has changed places
  for (const a of document.querySelectorAll("nav a")) {
    const of = a.getAttribute("href").slice(2), here = of === parts[0] || (of && parts[0] && of === `${parts[0]}s`);
    if (here) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = `${parts.slice(1).reverse().filter(Boolean).join(" in ") || parts[0] || "now"} · ringproxy`;
}

function drawStatus() {
  const status = document.getElementById("status"), o = snapshot && snapshot.overview;
  const worst = o && o.findings.of ? `${count(o.findings.of, "finding")}, the worst ${LEVELS[o.findings.shown[0].severity]}` : "no findings";
  const said = trouble || (o ? `Live, sidecar ${short(o.sidecar)}, ${o.ready ? "ready" : "not ready"}, ${worst}` : "");
  if (status.textContent !== said) status.textContent = said;
  status.className = trouble ? "lost" : "";
}

async function listen() {
  if (stream) stream.abort();
  if (document.hidden) { stream = null; return; }
  const mine = (stream = new AbortController()), where = location.hash, [kind, vhost, exchange] = route();
  const query = kind === "exchange" || kind === "group" ? `?kind=${kind}&vhost=${encodeURIComponent(vhost || "")}&exchange=${encodeURIComponent(exchange || "")}` : "";
  let watch = 0, fresh = performance.now();
  const heard = () => { clearTimeout(watch); watch = setTimeout(() => mine.abort(new Error("the sidecar says nothing")), SILENCE); };
  try {
    heard();
    const response = await fetch(`console/events${query}`, { signal: mine.signal, cache: "no-store" });
    if (!response.ok) throw new Error((await response.json()).detail);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let held = ""; ;) {
      const { value, done } = await reader.read();
      if (stream !== mine) return;
      if (done) throw new Error("the sidecar has ended the stream");
      heard();
      held += value;
      if (held.length > MOST_BUFFERED) throw new Error("the sidecar sends no whole event");
      const events = held.split("\n\n");
      held = events.pop();
      const newest = events.filter((each) => each.startsWith("data: ")).pop();
      if (newest) {
        snapshot = JSON.parse(newest.slice("data: ".length));
        if (location.hash !== where) [snapshot.detail, snapshot.fault] = [null, ""];   // of the view before; hashchange is due
        [trouble, fresh] = ["", performance.now()];
        draw();
      } else if (performance.now() - fresh > SILENCE) {
        trouble = "Not live: the sidecar makes no snapshots. Its log has the reason.";
        draw();
      }
    }
  } catch (error) {
    if (stream !== mine) return;
    mine.abort();   // or an event that cannot be shown would keep its stream open
    stream = null;
    setTimeout(() => { if (!stream) listen(); }, 2000);
    trouble = `Not live: ${error.message}. Trying again.`;
    draw();
  } finally {
    clearTimeout(watch);
  }
}

addEventListener("hashchange", () => {
  asked = {};
  about = null;  // the settings may have changed since
  if (snapshot) [snapshot.detail, snapshot.fault] = [null, ""];
  if (runbook && runbook.problem) runbook = null;
  draw();
  listen();
  scrollTo(0, 0);
  const title = document.querySelector("main h1");
  if (title) title.focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { trouble = "Not live yet: asking the sidecar."; drawStatus(); }
  listen();
});
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
draw();
listen();
