// The state of a screen in its address: page, filter, order and selection. Back and reload find it.

/**
 * The state that a query tells, with the defaults of what it does not tell.
 *
 * @template {Record<string, string>} S
 * @param {URLSearchParams} query
 * @param {S} defaults
 * @returns {S}
 */
export function stateOf(query, defaults) {
  const given = Object.keys(defaults).filter((name) => query.has(name));
  return { ...defaults, ...Object.fromEntries(given.map((name) => [name, query.get(name)])) };
}

/** The address of a screen in a state: it tells what is not by default. */
export function addressOf(path, state, defaults = {}) {
  const told = Object.entries(state).filter(([name, value]) => value !== (defaults[name] ?? ""));
  const query = new URLSearchParams(told).toString();
  return `#${path}${query && `?${query}`}`;
}

/** Keep the state of the screen in its address, in the place of the state before. */
export function keep(path, state, defaults = {}) {
  history.replaceState(history.state, "", addressOf(path, state, defaults));
}

/** Keep it as a place of its own, to which Back returns. */
export function enter(path, state, defaults = {}) {
  history.pushState({ isNextPage: true }, "", addressOf(path, state, defaults));
  scrollTo(0, 0);
}

/** True if Back leads to the page before this one. */
export function isNextPage() {
  return Boolean(history.state?.isNextPage);
}
