// Groups of a queue's messages by a fingerprint, from a sample that says its size.

import { get, latest, ofQueue } from "./api.js";
import { button, el, field, fill, link, row, table } from "./dom.js";
import { count, instant } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 144;
const HEIGHT = 24;
const COLUMNS = [["Group", "name"], ["Messages", "number"], ["Over time", ""],
  ["Oldest", "wide"], ["Newest", "wide"]];
const KINDS = [["source", "Source queue"], ["group", "Message group"],
  ["attribute", "Attribute"], ["json", "JSON field"]];

export async function showGroups({ view, parts: [name], query, signal, fail }) {
  const newest = latest(signal);
  const list = el("div");
  const [byKind, ...byName] = (query.get("by") ?? "source").split(":");
  const kind = el("select", {}, KINDS.map(([value, text]) =>
    el("option", { value, selected: value === byKind }, text)));
  const of = el("input", { value: byName.join(":"), autocomplete: "off", spellcheck: "false" });
  const ofField = field("Name of the attribute, or path such as error.code", of);
  const isNamed = () => ["attribute", "json"].includes(kind.value);
  const by = () => (isNamed() ? `${kind.value}:${of.value.trim()}` : kind.value);

  async function read(event) {
    event?.preventDefault();
    window.history.replaceState(null, "", `#/queues/${name}/groups?${new URLSearchParams({ by: by() })}`);
    try {
      fill(list, groupsOf(await get(ofQueue(name, "/groups"), { by: by() }, newest())));
    } catch (error) {
      fail(error);
    }
  }

  function groupsOf(found) {
    const sample = found.is_whole
      ? `All ${count(found.scanned)} messages were looked at.`
      : `A sample: the first ${count(found.scanned)} messages were looked at; there are more.`;
    const more = found.groups_total - found.groups.length;
    return [
      el("p", { class: "hint" }, sample, more > 0 && ` ${count(more)} smaller groups are not shown.`),
      found.groups.length
        ? table(COLUMNS, found.groups.map((group) => groupRow(group, found)), "Groups")
        : el("p", { class: "empty" }, "There are no messages."),
    ];
  }

  function groupRow(group, found) {
    const value = group.value === null
      ? el("span", { class: "masked" }, "none")
      : group.value + (group.is_cut ? "…" : "") || "(empty)";
    const address = `#/queues/${name}/messages?${new URLSearchParams(group.filter ?? {})}`;
    return row(COLUMNS, [group.filter ? link(value, address) : value, count(group.count),
      histogram(group, found), instant(group.oldest_ms), instant(group.newest_ms)]);
  }

  const showField = () => (ofField.hidden = !isNamed());
  kind.addEventListener("change", showField);
  showField();
  fill(
    view,
    el("h1", {}, "Groups of ", link(name, `#/queues/${name}`)),
    el("form", { class: "search", onsubmit: read }, field("Group by", kind), ofField,
      button("Group", () => {}, { type: "submit", class: "main" })),
    list,
  );
  await read();
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
