// The operators' API, from the document in which it describes itself.

import { keep, stateOf } from "./address.js";
import { el, fill, link } from "./dom.js";
import { resource } from "./resource.js";
import { sent } from "./wire.js";

const PATH = "/api";
const DEFAULTS = { search: "" };
const DOCUMENT = "openapi.json";
const PREFIX = "/_holdfast/";

/**
 * @typedef {{type?: string | string[], $ref?: string, anyOf?: Schema[], items?: Schema, enum?: unknown[], description?: string,
 *   properties?: Record<string, Schema>, required?: string[], additionalProperties?: Schema | boolean, const?: unknown}} Schema
 * @typedef {{name: string, in: string, required?: boolean, description?: string, schema: Schema, $ref?: string}} Parameter
 * @typedef {{method: string, path: string, tag: string, summary: string, description: string, parameters: Parameter[],
 *   body?: Schema, answer?: Schema}} Operation
 */

/** The type of a value in a few words, such as "list of Redrive, or null". */
export function typeText(/** @type {Schema} */ schema) {
  const { $ref: reference, anyOf, items, type, enum: values, additionalProperties: each } = schema;
  if (reference) return reference.slice(reference.lastIndexOf("/") + 1);
  if (anyOf) return anyOf.map(typeText).join(" or ");
  if (values) return values.map((value) => JSON.stringify(value)).join(" or ");
  if (items) return `list of ${typeText(items)}`;
  if (each && typeof each === "object") return `object of ${typeText(each)}`;
  return [type ?? "anything"].flat().join(" or ");
}

/** The operations of a document, in its order. @returns {Operation[]} */
export function operationsOf({ paths, components }) {
  const found = ({ $ref: reference, ...rest }) =>
    (reference ? components.parameters[reference.slice(reference.lastIndexOf("/") + 1)] : rest);
  const json = (content) => content?.content?.["application/json"]?.schema;
  return Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => ({
    method: method.toUpperCase(),
    path,
    tag: told.tags[0],
    summary: told.summary,
    description: told.description ?? "",
    parameters: (told.parameters ?? []).map(found),
    body: json(told.requestBody),
    answer: json(told.responses["200"]),
  })));
}

export async function showApi({ view, query, signal, fail }) {
  const state = stateOf(query, DEFAULTS);
  const input = el("input", { type: "search", value: state.search, placeholder: "Search  ( / )", "aria-label": "Search the API",
    oninput: ({ currentTarget: { value } }) => {
      state.search = value;
      keep(PATH, state, DEFAULTS);
      list.show();
    } });
  const list = resource({
    what: "The API's description",
    ask: (mine) => sent({ method: "GET", path: DOCUMENT }, mine),
    show: (document) => groups(document, state.search),
    signal,
    fail,
  });
  fill(view,
    el("h1", {}, "API"),
    el("p", {}, "All that the console does, for programs: signed as requests of SQS are, or with a session. As ",
      link("OpenAPI", `${PREFIX}api/${DOCUMENT}`), "."),
    el("p", { class: "toolbar" }, input),
    list.place);
  await list.read();
}

function groups(document, search) {
  const words = search.toLowerCase().split(/\s+/);
  const found = operationsOf(document).filter(({ method, path, summary }) =>
    words.every((word) => `${method} ${path} ${summary}`.toLowerCase().includes(word)));
  if (found.length === 0) return el("p", { class: "empty" }, "Nothing has these words.");
  const tags = [...new Set(found.map(({ tag }) => tag))];
  return tags.map((tag) => el("section", { "data-key": tag, "aria-label": tag }, el("h2", {}, tag),
    found.filter((each) => each.tag === tag).map((each) => shown(each, document.components.schemas))));
}

function shown(/** @type {Operation} */ { method, path, summary, description, parameters, body, answer }, schemas) {
  return el("details", { class: "operation", "data-key": `${method} ${path}` },
    el("summary", {}, el("code", {}, el("strong", {}, method), ` ${path}`), el("span", {}, " ", coded(summary))),
    texts(description),
    parameters.length > 0 && [el("h3", {}, "Parameters"), fields(parameters.map((each) =>
      [each.name, `${typeText(each.schema)}, in the ${each.in}${each.required ? "" : ", optional"}`, each.description]))],
    body && [el("h3", {}, "Body"), fieldsOf(body, schemas)],
    answer && [el("h3", {}, "Answer"), fieldsOf(answer, schemas)]);
}

/** The fields of a schema; those of a named one within it stand under its name. */
function fieldsOf(/** @type {Schema} */ schema, schemas) {
  const whole = schema.$ref ? schemas[typeText(schema)] : schema;
  if (!whole?.properties) return el("p", {}, typeText(schema));
  const { properties, required = [], description } = whole;
  return [texts(description), fields(Object.entries(properties).map(([name, each]) =>
    [name, typeText(each) + (required.includes(name) ? "" : ", optional"), each.description]))];
}

function texts(text) {
  return text && el("p", { class: "hint" }, coded(text));
}

/** A text in one line, with what stands in backticks as code. */
function coded(/** @type {string} */ text) {
  return text.replace(/\s*\n\s*/g, " ").split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
}

/** @param {[name: string, type: string, said: string | undefined][]} rows */
function fields(rows) {
  return el("dl", {}, rows.map(([name, type, said]) =>
    [el("dt", {}, el("code", {}, name)), el("dd", {}, type, said && [". ", coded(said)])]));
}
