// Lines in SVG: of charts, and small ones for a table.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 96;
const HEIGHT = 22;

export function shape(tag, properties) {
  const made = document.createElementNS(SVG, tag);
  Object.entries(properties).forEach(([name, value]) => made.setAttribute(name, value));
  return made;
}

/** The path of values up to `top`: null is a gap, a lone value a short stroke. */
export function path(values, top, width, height) {
  const step = width / Math.max(1, values.length - 1);
  let shown = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const y = (height - 2 - (value / top) * (height - 6)).toFixed(1);
    const x = (at * step).toFixed(1);
    const isAlone = at === 0 || values[at - 1] === null;
    shown += isAlone ? `M${Math.max(0, at * step - 8).toFixed(1)},${y}L${x},${y}` : `L${x},${y}`;
  });
  return shown;
}

/** Texts of an axis, which are not stretched as the lines are. */
export function labels(kind, texts) {
  const svg = shape("svg", { class: kind, "aria-hidden": "true" });
  for (const [at, text] of texts) {
    const label = shape("text", at);
    label.textContent = text;
    svg.append(label);
  }
  return svg;
}

/** A small line; `label` says the same in words, also on hover. */
export function sparkline(values, label) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label });
  const told = shape("title", {});
  told.textContent = label;
  svg.append(told, shape("path", { d: path(values, Math.max(1, ...values), WIDTH, HEIGHT) }));
  return svg;
}
