// Checks the agent's messages against the protocol's schema: each by the definition of its own method.
import assert from "node:assert/strict";
import Ajv2020 from "ajv/dist/2020.js";

const ranges = { uint16: [0, 65535], uint32: [0, 2 ** 32 - 1], uint64: [0, 2 ** 64], int32: [-(2 ** 31), 2 ** 31 - 1] };

export function checker(schema) {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  for (const [name, [low, high]] of Object.entries(ranges)) {
    ajv.addFormat(name, { type: "number", validate: (n) => Number.isInteger(n) && n >= low && n <= high });
  }
  for (const name of ["int64", "double", "uri"]) ajv.addFormat(name, true);
  ajv.addSchema(schema, "acp");
  const whole = ajv.getSchema("acp");
  const byMethod = new Map(); // "session/update" -> definition of its parameters; "session/new result" -> of its result
  for (const [name, definition] of Object.entries(schema.$defs)) {
    const method = definition["x-method"];
    if (method) byMethod.set(name.endsWith("Response") ? `${method} result` : method, ajv.getSchema(`acp#/$defs/${name}`));
  }
  const error = ajv.getSchema("acp#/$defs/Error");
  const methods = new Map(); // id of a request of the editor -> its method

  function valid(validate, value, what) {
    assert.ok(validate, `the schema knows no ${what}`);
    assert.ok(validate(value), `${what}: ${ajv.errorsText(validate.errors)}: ${JSON.stringify(value).slice(0, 500)}`);
  }

  function check(message) {
    valid(whole, message, "message");
    if ("method" in message) valid(byMethod.get(message.method), message.params, message.method);
    else if ("error" in message) valid(error, message.error, "error");
    else valid(byMethod.get(`${methods.get(message.id)} result`), message.result, `${methods.get(message.id)} result`);
  }
  check.sent = (message) => {
    if ("method" in message && "id" in message) methods.set(message.id, message.method);
  };
  return check;
}
