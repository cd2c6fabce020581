// Groups of a queue's messages by a fingerprint, from a sample that says its size.

import { keep } from "./address.js";
import { get, ofQueue } from "./api.js";
import { button, el, field, fill, link, row, table } from "./dom.js";
import { fingerprintOf } from "./fingerprint.js";
import { count, instant } from "./format.js";
import { needed, resource } from "./resource.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 144;
const HEIGHT = 24;
const COLUMNS = [["Group", "name"], ["Messages", "number"], ["Over time", ""],
  ["Oldest", "wide"], ["Newest", "wide"], ["Actions", ""]];
const SAMPLE = 50;
const KINDS = [["source", "Source queue"], ["group", "Message group"],
  ["attribute", "Attribute"], ["json", "JSON field"]];

export async function showGroups(screen) {
  const { view, parts: [name], query, signal, fail } = screen;
  const asked = query.get("by");
  const queue = await needed(screen, "The queue", (mine) => get(ofQueue(name), {}, mine));
  const first = asked ?? (await needed(screen, "The messages", (mine) => fingerprint(name, mine)));
  const [byKind, ...byName] = first.split(":");
  const kind = el("select", {}, KINDS.map(([value, text]) =>
    el("option", { value, selected: value === byKind }, text)));
  const of = el("input", { value: byName.join(":"), autocomplete: "off", spellcheck: "false" });
  const ofField = field("Name of the attribute, or path such as error.code", of);
  const isNamed = () => ["attribute", "json"].includes(kind.value);
  const by = () => (isNamed() ? `${kind.value}:${of.value.trim()}` : kind.value);

  const list = resource({ what: "The groups", signal, fail,
    ask: (mine) => get(ofQueue(name, "/groups"), { by: by() }, mine),
    show: (found) => groupsOf(queue, found) });

  function read(event) {
    event?.preventDefault();
    keep(`/queues/${name}/groups`, { by: by() }, {});
    return list.ask();
  }

  const showField = () => (ofField.hidden = !isNamed());
  kind.addEventListener("change", showField);
  showField();
  fill(
    view,
    el("h1", {}, "Groups of ", link(name, `#/queues/${name}`)),
    el("form", { class: "search", onsubmit: read }, field("Group by", kind), ofField,
      button("Group", () => {}, { type: "submit", class: "main" })),
    list.place,
  );
  await read();
}

/** The failures of a dead-letter queue, by what tells them apart, each with what can be done about it. */
export function failures(queue, signal, fail) {
  const { name } = queue;
  let by = "";

  async function ask(mine) {
    by ||= await fingerprint(name, mine);
    return get(ofQueue(name, "/groups"), { by }, mine);
  }

  const list = resource({ what: "The failures", signal, fail, ask, show: (found) => [
    el("h2", {}, "Failures by ", link(titleOf(by), `#/queues/${name}/groups?${new URLSearchParams({ by })}`)),
    groupsOf(queue, found),
  ] });
  list.read(); // once: each look at bodies is in the audit log
  return list.place;
}

async function fingerprint(name, signal) {
  const { messages } = await get(ofQueue(name, "/messages"), { limit: SAMPLE }, signal);
  return fingerprintOf(messages);
}

function titleOf(by) {
  const [kind, ...of] = by.split(":");
  return of.join(":") || (KINDS.find(([each]) => each === kind)?.[1] ?? kind).toLowerCase();
}

function groupsOf(queue, found) {
  const sample = found.is_whole
    ? `All ${count(found.scanned)} messages were looked at.`
    : `A sample: the first ${count(found.scanned)} messages were looked at; there are more.`;
  const more = found.groups_total - found.groups.length;
  return [
    el("p", { class: "hint" }, sample, more > 0 && ` ${count(more)} smaller groups are not shown.`),
    found.groups.length > 0
      ? table(COLUMNS, found.groups.map((group) => groupRow(queue, group, found)), "Groups")
      : el("p", { class: "empty" }, "There are no messages."),
  ];
}

function groupRow({ name, may, sources_total: sources }, group, found) {
  const value = group.value === null
    ? el("span", { class: "masked" }, "none")
    : group.value + (group.is_cut ? "…" : "") || "(empty)";
  const query = new URLSearchParams(group.filter ?? {});
  const redrives = group.filter && sources > 0 && may.includes("holdfast:RedriveMessages");
  const redrive = `#/queues/${name}/redrive?${query}`;
  return row(COLUMNS, [
    group.filter ? link(value, `#/queues/${name}/messages?${query}`) : value,
    count(group.count),
    histogram(group, found),
    instant(group.oldest_ms),
    instant(group.newest_ms),
    redrives && [link("Redrive", redrive, { class: "button", "aria-label": `Redrive ${group.value}` }), " ",
      may.includes("holdfast:ReadMessageBodies")
        && link("Edit", `${redrive}&edit=`, { class: "button", "aria-label": `Edit ${group.value}` })],
  ], { "data-key": String(group.value) });
}

/** Messages by the time at which they were sent. */
function histogram(group, { begin_ms: begin, bar_ms: bar }) {
  const top = Math.max(...group.bars);
  const step = WIDTH / group.bars.length;
  const svg = document.createElementNS(SVG, "svg");
  const label = `${count(group.count)} sent from ${instant(group.oldest_ms)} to `
    + `${instant(group.newest_ms)}, most at ${instant(begin + group.bars.indexOf(top) * bar)}`;
  const given = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "bars", role: "img", "aria-label": label };
  Object.entries(given).forEach(([name, value]) => svg.setAttribute(name, value));
  group.bars.forEach((messages, at) => {
    if (!messages) return;
    const height = Math.max(2, (messages / top) * HEIGHT);
    const rect = document.createElementNS(SVG, "rect");
    Object.entries({ x: at * step, y: HEIGHT - height, width: step - 1, height })
      .forEach(([name, value]) => rect.setAttribute(name, String(value)));
    svg.append(rect);
  });
  return svg;
}
