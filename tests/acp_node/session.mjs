// A full session of an editor with `pointcode acp`, over the official SDK. Every line of the agent is checked against
// the protocol's own JSON schema. Arguments: the workspace, then the agent's command line.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { checker } from "./checker.mjs";

const [workspace, command, ...rest] = process.argv.slice(2);
const schema = createRequire(import.meta.url)("@agentclientprotocol/sdk/schema/v1/schema.json");
const check = checker(schema);
const { agent: toAgent, client: toClient } = acp.methods;

const process_ = spawn(command, rest, { stdio: ["pipe", "pipe", "inherit"] });
const exited = new Promise((resolve) => process_.on("exit", (code) => resolve(code)));

// ------------------------------------------------------------------------------------------------- what is seen
const lines = []; // every message of the agent, as it came
let wake = () => {};
const input = Readable.toWeb(process_.stdout).pipeThrough(lineTap((line) => {
  const message = JSON.parse(line);
  check(message);
  lines.push(message);
  wake();
}));
const output = tapRequests(Writable.toWeb(process_.stdin));

function lineTap(onLine) {
  let rest = "";
  const decoder = new TextDecoder();
  return new TransformStream({
    transform(chunk, controller) {
      const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = parts.pop();
      parts.filter((line) => line.trim()).forEach(onLine);
      controller.enqueue(chunk);
    },
  });
}

function tapRequests(target) {
  const writer = target.getWriter();
  const tap = lineTap((line) => check.sent(JSON.parse(line)));
  const relay = tap.readable.pipeTo(new WritableStream({ write: (chunk) => writer.write(chunk), close: () => writer.close() }));
  relay.catch(() => {});
  tap.writable.raw = (text) => writer.write(new TextEncoder().encode(text));
  return tap.writable;
}

async function until(condition) {
  for (;;) {
    const found = condition();
    if (found) return found;
    await new Promise((resolve) => { wake = resolve; });
  }
}

const updates = () => lines.filter((m) => m.method === "session/update").map((m) => m.params.update);
const said = (from = 0) => updates().slice(from).filter((u) => u.sessionUpdate === "agent_message_chunk")
  .map((u) => u.content.text).join("");

// ------------------------------------------------------------------------------------------------- the editor
const buffers = new Map(); // unsaved text by path
const terminals = new Map();
const permissions = [];

function terminal({ command: program, args, cwd, env }) {
  const id = `terminal-${terminals.size + 1}`;
  const child = spawn(program, args, { cwd, env: { ...process.env, ...Object.fromEntries(env.map((e) => [e.name, e.value])) } });
  const state = { child, output: "", status: null };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => { state.output += data; });
  state.done = new Promise((resolve) => child.on("close", (exitCode, signal) => resolve((state.status = { exitCode, signal }))));
  terminals.set(id, state);
  return { terminalId: id };
}

const editor = acp.client({ name: "test-editor" })
  .onRequest(toClient.session.requestPermission, ({ params }) => {
    permissions.push(params);
    const option = params.options.find((o) => o.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: option.optionId } };
  })
  .onRequest(toClient.fs.readTextFile, async ({ params }) => ({
    content: buffers.get(params.path) ?? await readFile(params.path, "utf8"),
  }))
  .onRequest(toClient.fs.writeTextFile, async ({ params }) => {
    buffers.delete(params.path);
    await writeFile(params.path, params.content);
    return {};
  })
  .onRequest(toClient.terminal.create, ({ params }) => terminal(params))
  .onRequest(toClient.terminal.waitForExit, ({ params }) => terminals.get(params.terminalId).done)
  .onRequest(toClient.terminal.output, ({ params }) => {
    const { output, status } = terminals.get(params.terminalId);
    return { output, truncated: false, ...(status ? { exitStatus: status } : {}) };
  })
  .onRequest(toClient.terminal.kill, ({ params }) => { terminals.get(params.terminalId).child.kill("SIGKILL"); return {}; })
  .onRequest(toClient.terminal.release, () => ({}))
  .onNotification(toClient.session.update, () => {});

// ------------------------------------------------------------------------------------------------- the session
const text = (t) => [{ type: "text", text: t }];
const file = path.join(workspace, "a.txt");
const raw = output.raw;

await editor.connectWith(acp.ndJsonStream(output, input), async (agent) => {
  const hello = await agent.request(toAgent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: {
      fs: { readTextFile: true, writeTextFile: true }, terminal: true, session: { notices: {}, compaction: {} },
    },
    clientInfo: { name: "test-editor", version: "1" },
  });
  assert.equal(hello.protocolVersion, acp.PROTOCOL_VERSION);
  assert.equal(hello.agentCapabilities.loadSession, true);

  const { sessionId, modes, configOptions } = await agent.request(toAgent.session.new, {
    cwd: workspace, mcpServers: [{ type: "sse", name: "old", url: "http://127.0.0.1:9/", headers: [] }],
  });
  assert.equal(modes.currentModeId, "ask");
  assert.deepEqual(configOptions.map((o) => o.id), ["mode", "model"]);
  await until(() => updates().some((u) => u.sessionUpdate === "available_commands_update"));
  console.log("ok new");

  buffers.set(file, "one\nTYPED\n"); // unsaved
  const first = await agent.request(toAgent.session.prompt, { sessionId, prompt: text("Edit it.") });
  assert.equal(first.stopReason, "end_turn");
  assert.equal(permissions.length, 1);
  assert.ok(updates().some((u) => u.sessionUpdate === "notice" && u.title.includes("old")));
  const [diff] = permissions[0].toolCall.content;
  assert.deepEqual(diff, { type: "diff", path: file, oldText: "one\nTYPED\n", newText: "1\nTYPED\n" });
  assert.equal(await readFile(file, "utf8"), "1\nTYPED\n");
  assert.equal(said(), "Edited.");
  console.log("ok prompt with edit and permission");

  const second = await agent.request(toAgent.session.prompt, { sessionId, prompt: text("Run it.") });
  assert.equal(second.stopReason, "end_turn");
  assert.equal(permissions.length, 2); // a command that nobody was asked about would run in the agent's own sandbox
  assert.equal(terminals.size, 1);
  assert.ok(updates().some((u) => u.content?.some?.((c) => c.type === "terminal" && c.terminalId === "terminal-1")));
  assert.ok(updates().some((u) => u.status === "completed" && u.rawOutput?.text === "from the terminal\n"));
  console.log("ok command in a terminal");

  const before = updates().length;
  const third = agent.request(toAgent.session.prompt, { sessionId, prompt: text("Wait.") });
  await until(() => said(before));
  await agent.notify(toAgent.session.cancel, { sessionId });
  assert.equal((await third).stopReason, "cancelled");
  console.log("ok cancel");

  await agent.request(toAgent.session.setMode, { sessionId, modeId: "accept-edits" });
  const changed = await agent.request(toAgent.session.setConfigOption, { sessionId, configId: "mode", value: "plan" });
  assert.equal(changed.configOptions[0].currentValue, "plan");
  const usage = updates().filter((u) => u.sessionUpdate === "usage_update");
  assert.ok(usage.length > 0 && usage[0].size > 0);

  const faults = [
    ["no JSON", -32700], ["[1, 2]", -32600], ["42", -32600], ['{"jsonrpc":"2.0","id":"f3","method":7}', -32600],
    ['{"jsonrpc":"2.0","id":"f4","method":"session/nothing"}', -32601],
    ['{"jsonrpc":"2.0","id":"f5","method":"session/prompt","params":{"sessionId":7}}', -32602],
  ];
  for (const [line, code] of faults) {
    const start = lines.length;
    await raw(line + "\n");
    const answer = await until(() => lines.slice(start).find((m) => "error" in m));
    assert.equal(answer.error.code, code, line);
  }
  await assert.rejects(agent.request(toAgent.session.prompt, { sessionId: "nobody", prompt: text("x") }), { code: -32002 });
  await assert.rejects(agent.request(toAgent.session.setMode, { sessionId, modeId: "god" }), { code: -32602 });
  console.log("ok malformed input");

  const live = updates().filter((u) => u.sessionUpdate === "tool_call").map((u) => u.toolCallId);
  await agent.request(toAgent.session.close, { sessionId });
  const listed = await agent.request(toAgent.session.list, { cwd: workspace });
  assert.deepEqual(listed.sessions.map((s) => [s.sessionId, s.title]), [[sessionId, "Edit it."]]);
  const start = updates().length;
  await agent.request(toAgent.session.load, { sessionId, cwd: workspace, mcpServers: [] });
  const replayed = updates().slice(start);
  assert.deepEqual(replayed.filter((u) => u.sessionUpdate === "tool_call").map((u) => u.toolCallId), live);
  assert.deepEqual(
    replayed.filter((u) => u.sessionUpdate === "user_message_chunk").map((u) => u.content.text),
    ["Edit it.", "Run it.", "Wait."],
  );
  const resumed = updates().length;
  const fourth = await agent.request(toAgent.session.prompt, { sessionId, prompt: text("And now?") });
  assert.equal(fourth.stopReason, "end_turn");
  assert.equal(said(resumed), "Loaded.");
  console.log("ok list and load");
  assert.deepEqual(await agent.request(toAgent.session.delete, { sessionId }), {});
});

process_.stdin.end();
assert.equal(await exited, 0);
console.log(`ok ${lines.length} messages are valid`);
process.exit(0);
