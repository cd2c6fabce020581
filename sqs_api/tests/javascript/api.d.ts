// The console's paths and answers, from the service's OpenAPI document.

type Paths = import("./openapi.d.ts").paths;
type Method = "get" | "post";

/** Paths of the API that a method has, without their beginning: "queues/{queue}/messages". */
type ApiPath<M extends Method> = {
  [P in keyof Paths]: P extends `/_holdfast/api/${infer Rest}`
    ? Paths[P][M] extends { responses: object }
      ? Rest
      : never
    : never;
}[keyof Paths];

type Operation<M extends Method, P extends string> =
  `/_holdfast/api/${P}` extends keyof Paths ? Paths[`/_holdfast/api/${P}`][M] : never;

/** The answer of a path to a method. */
type Answer<M extends Method, P extends string> =
  Operation<M, P> extends { responses: { 200: { content: { "application/json": infer A } } } } ? A : never;

/** The content of a request. */
type Content<M extends Method, P extends string> =
  Operation<M, P> extends { requestBody: { content: { "application/json": infer C } } } ? C : never;

/** The parameters of a request's address; empty ones are left out. */
type Query<P extends string> =
  Operation<"get", P> extends { parameters: { query?: infer Q } }
    ? { [N in keyof NonNullable<Q>]?: string | number | boolean | null }
    : Record<string, never>;

type Schemas = import("./openapi.d.ts").components["schemas"];
