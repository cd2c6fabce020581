// Elements that are brought up to date in place: what did not change stays the same element, so that
// the focus, selected text, typed text and open details stay, too.

const listeners = new WeakMap(); // of elements: what answers an event, by its type

/** Answer an event of an element. A patched element gets the answers of its newer version. */
export function listen(element, type, answer) {
  const known = listeners.get(element) ?? new Map();
  if (!known.has(type)) element.addEventListener(type, heard);
  known.set(type, answer);
  listeners.set(element, known);
}

function heard(event) {
  return listeners.get(event.currentTarget)?.get(event.type)?.(event);
}

/**
 * Make the children of an element these, which are elements, texts, or lists of them. A child that
 * is there already, by its `data-key` or at its place and of its kind, takes over what the newer one says.
 * So answers to events must speak of `event.currentTarget`, never of the element they were made for.
 */
export function patch(element, ...children) {
  const focused = document.activeElement;
  const beside = focused?.parentElement;
  patchNodes(element, nodesOf(children));
  if (!(focused instanceof HTMLElement) || focused === document.activeElement) return;
  const next = element.contains(focused) ? focused : beside?.querySelector("button, a");
  if (next instanceof HTMLElement) next.focus({ preventScroll: true }); // it was moved, or replaced
}

/** Elements and texts in these lists, without what is left out. */
export function nodesOf(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

function patchNodes(element, wanted) {
  const keyed = new Map();
  for (const child of element.children)
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let at = element.firstChild;
  for (const node of wanted) {
    const known = node.parentNode === element ? node : sameAs(node, at, keyed);
    if (known === null) {
      element.insertBefore(node, at);
      continue;
    }
    if (known === at) at = at.nextSibling;
    else element.insertBefore(known, at);
    if (known !== node) update(known, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** The element that a newer one may update; null if there is none. */
function sameAs(node, at, keyed) {
  const key = node.dataset?.key;
  const known = key === undefined ? at : keyed.get(key);
  if (!known || known.nodeName !== node.nodeName || known.dataset?.key !== key) return null;
  keyed.delete(key);
  return known;
}

function update(known, newer) {
  if (known.nodeType === Node.TEXT_NODE) {
    if (known.nodeValue !== newer.nodeValue) known.nodeValue = newer.nodeValue;
    return;
  }
  for (const [type, answer] of listeners.get(newer) ?? []) listen(known, type, answer);
  for (const type of listeners.get(known)?.keys() ?? [])
    if (!listeners.get(newer)?.has(type)) listen(known, type, null);
  if (known.getAttribute("aria-busy") === "true") return; // a button that waits for its answer
  updateAttributes(known, newer);
  if (known instanceof HTMLInputElement && known.type === "checkbox") known.checked = newer.checked;
  patchNodes(known, [...newer.childNodes]);
}

function updateAttributes(known, newer) {
  const stays = known.nodeName === "DETAILS" ? "open" : "";
  for (const { name, value } of [...newer.attributes])
    if (name !== stays && known.getAttribute(name) !== value) known.setAttribute(name, value);
  for (const { name } of [...known.attributes])
    if (name !== stays && !newer.hasAttribute(name)) known.removeAttribute(name);
}
