// Things that change while one looks: repeated reads, rates, small charts.

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 60;

/** Do something now and again and again while the page is seen, until the signal. */
export async function repeat(signal, pauseMs, work) {
  while (!signal.aborted) {
    if (!document.hidden) await work();
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, pauseMs);
      signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }
}

/** What was seen of queues since the page was opened. */
export class History {
  constructor() {
    this.seen = new Map();
  }

  add(queue, atMs = Date.now()) {
    if (queue.visible === null) return;
    const kept = this.seen.get(queue.name) ?? [];
    kept.push({
      atMs,
      depth: queue.visible + queue.in_flight + queue.delayed,
      sent: queue.sent + queue.moved_in,
      received: queue.received,
    });
    this.seen.set(queue.name, kept.slice(-KEPT));
  }

  /** Messages a second, between the last two looks; null if there was one only. */
  rate(name, counter) {
    const [before, last] = (this.seen.get(name) ?? []).slice(-2);
    if (!last || last.atMs === before.atMs) return null;
    return Math.max(0, ((last[counter] - before[counter]) * 1000) / (last.atMs - before.atMs));
  }

  /** A line of the depth. */
  chart(name, width = 96, height = 22) {
    const points = (this.seen.get(name) ?? []).map((each) => each.depth);
    const top = Math.max(1, ...points);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("class", "chart");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `messages over time, now ${points.at(-1) ?? 0}`);
    const line = document.createElementNS(SVG, "polyline");
    const step = width / Math.max(1, points.length - 1);
    const y = (depth) => (height - 2 - (depth / top) * (height - 4)).toFixed(1);
    const shown = points.length === 1 ? [points[0], points[0]] : points;
    const at = (number) => (points.length === 1 ? number * width : number * step).toFixed(1);
    line.setAttribute("points", shown.map((depth, number) => `${at(number)},${y(depth)}`).join(" "));
    svg.append(line);
    return svg;
  }
}
