// Where the caller is signed in.

import { get, post } from "./api.js";
import { button, el, fill, notice, row, table, time } from "./dom.js";
import { local } from "./format.js";
import { resource } from "./resource.js";
import { isOpen } from "./session.js";

const COLUMNS = [["Browser", "name"], ["Address", "wide"], ["Signed in", ""], ["Ends", "wide"], ["Actions", ""]];

export async function showSessions({ view, signal, fail }) {
  if (isOpen) {
    fill(view, el("h1", {}, "Your sessions"),
      el("p", { class: "empty" }, "Nobody signs in to a service in open mode."));
    return;
  }
  const list = resource({ what: "Your sessions", ask: (mine) => get("sessions", {}, mine), show, signal, fail });

  function show(found) {
    return [
      table(COLUMNS, found.map((each) => sessionRow(each, end)), "Your sessions"),
      el("p", { class: "actions" }, button("End all", () => end(null), { class: "danger", busy: "Ending …",
        confirm: () => ["End all your sessions?", "This browser is signed out too.", "End all"] })),
    ];
  }

  async function end(session) {
    try {
      await post("sessions/end", { session });
      if (session) notice("The session has ended.");
      if (!signal.aborted) await list.read();
    } catch (error) {
      fail(error);
    }
  }

  fill(
    view,
    el("h1", {}, "Your sessions"),
    el("p", { class: "hint" }, "Browsers in which you are signed in. They also end when their access key is "
      + "disabled or deleted, and when your policies or tags change."),
    list.place,
  );
  list.watch(5000);
}

function sessionRow(session, end) {
  const name = browserOf(session.user_agent);
  const begun = local(session.created_at_ms);
  return row(COLUMNS, [
    el("span", { title: session.user_agent }, name, session.is_this && el("span", { class: "hint" }, " this one")),
    session.source_ip,
    time(session.created_at_ms),
    time(session.expires_at_ms),
    !session.is_this && button("End", () => end(session.session),
      { busy: "Ending …", "aria-label": `End the session in ${name} of ${begun}` }),
  ], { "data-key": session.session });
}

/** A name for a User-Agent header, such as "Firefox on Linux". */
function browserOf(agent) {
  const first = (...pairs) => pairs.find(([pattern]) => pattern.test(agent))?.[1];
  const browser = first([/Edg/, "Edge"], [/OPR/, "Opera"], [/Firefox/, "Firefox"], [/Chrom/, "Chromium"],
    [/Safari/, "Safari"]);
  const system = first([/Android/, "Android"], [/iPhone|iPad/, "iOS"], [/Windows/, "Windows"],
    [/Mac OS/, "macOS"], [/Linux/, "Linux"]);
  if (!browser) return agent || "unknown";
  return system ? `${browser} on ${system}` : browser;
}
