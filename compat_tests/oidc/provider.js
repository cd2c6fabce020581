// An OpenID Connect provider on this machine for tests: PORT and the console's address are arguments.
// Its people are whoever types a name; `groups` of "name.group.group" are behind the dots.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, address] = process.argv.slice(2);
const found = createRequire(`${process.cwd()}/package.json`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(found).href);
const SIGN_IN_BACK = "/_holdfast/sign-in/back";

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "holdfast", client_secret: "secret of the client", redirect_uris: [address + SIGN_IN_BACK] }],
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
  findAccount: (_, sub) => ({
    accountId: sub,
    claims: () => {
      const [name, ...groups] = sub.split(".");
      return { sub, preferred_username: name, groups };
    },
  }),
  pkce: { required: () => true },
});
provider.listen(Number(port), "127.0.0.1", () => process.stdout.write("ready\n"));
