// A proxy in front of replicas, as a balancer without sticky sessions and a client that tries again: each request goes to
// the next replica, and on to another one when that is gone. What it says about tasks is read with the schemas of the
// extension's own package, and over time: no two answers about a task may contradict each other.
//
// Usage: node replicas.mjs FOLDER-WITH-NODE_MODULES REPORT URL...
// Prints its URL. On SIGTERM it writes REPORT (JSON) and ends.
import http from "node:http";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [folder, report, ...urls] = process.argv.slice(2);
const targets = urls.map((url) => new URL(url));
const installed = path.resolve(folder, "node_modules/@modelcontextprotocol/ext-tasks");
const exported = createRequire(path.join(installed, "package.json"))("./package.json").exports["./core/v2"].import;
const schemas = await import(pathToFileURL(path.join(installed, exported)).href);

const END = new Set(["completed", "failed", "cancelled"]);
const seen = new Map();
const broken = [];
let read = 0, retried = 0, turn = 0;

// What a message of the server is by the extension, if it is any of it.
function kind(request, message) {
  if (message.method === "notifications/tasks") return ["TaskStatusNotification", message, message.params];
  if (message.id !== request.id || !message.result) return;
  const { result } = message;
  if (request.method === "tools/call" && result.resultType === "task") return ["CreateTaskResult", result, result];
  if (request.method === "tasks/get") return ["GetTaskResult", result, result];
  if (request.method === "tasks/update") return ["UpdateTaskResult", result];
  if (request.method === "tasks/cancel") return ["CancelTaskResult", result];
}

function look(request, message) {
  const [name, value, task] = kind(request, message) ?? [];
  if (!name) return;
  read += 1;
  const wrong = (what) => broken.push(`${request.method}: ${what}: ${JSON.stringify(message).slice(0, 400)}`);
  const parsed = schemas[`${name}V2Schema`].safeParse(value);
  if (!parsed.success) wrong(parsed.error.issues.map((issue) => `${issue.path.join(".")} ${issue.message}`).join("; "));
  if (!task) return;
  for (const [status, field] of [["completed", "result"], ["failed", "error"], ["input_required", "inputRequests"]])
    if ((task.status === status) !== field in task && name !== "CreateTaskResult") wrong(`${task.status} and ${field}`);
  const end = END.has(task.status) ? JSON.stringify([task.status, task.result, task.error]) : undefined;
  const known = seen.get(task.taskId) ?? { createdAt: task.createdAt };
  if (known.createdAt !== task.createdAt) wrong(`created at ${known.createdAt}`);
  if (known.end && end && known.end !== end) wrong(`ended before as ${known.end}`);
  seen.set(task.taskId, { ...known, end: known.end ?? end });
}

function messages(type, text) {
  const lines = text.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
  const all = type?.includes("event-stream") ? lines : [text];
  return all.flatMap((json) => { try { return [JSON.parse(json)]; } catch { return []; } });
}

// Sends to one replica. A stream that has no end of its own is passed on as it comes, everything else when it is whole.
function send(target, incoming, body, streams, outgoing) {
  return new Promise((resolve, reject) => {
    const headers = { ...incoming.headers, host: target.host };
    const options = { hostname: target.hostname, port: target.port, path: target.pathname, method: incoming.method, headers, agent: false };
    const up = http.request(options, (reply) => {
      const chunks = [];
      if (streams) outgoing.writeHead(reply.statusCode, reply.headers);
      reply.on("data", (chunk) => { chunks.push(chunk); if (streams) outgoing.write(chunk); });
      reply.on("error", reject);
      reply.on("end", () => resolve({ reply, whole: Buffer.concat(chunks) }));
    });
    outgoing.on("close", () => up.destroy());
    up.on("error", reject);
    up.end(body);
  });
}

const server = http.createServer(async (incoming, outgoing) => {
  const chunks = [];
  for await (const chunk of incoming) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  let request = {};
  try { request = JSON.parse(body.toString()); } catch { /* The server's to refuse. */ }
  const streams = request.method === "subscriptions/listen" || incoming.method === "GET";
  const until = Date.now() + 8000;
  for (;;) {
    const target = targets[turn++ % targets.length];
    try {
      const { reply, whole } = await send(target, incoming, body, streams, outgoing);
      for (const message of messages(reply.headers["content-type"], whole.toString())) look(request, message);
      if (!streams) {
        const headers = { ...reply.headers };
        delete headers["transfer-encoding"];
        outgoing.writeHead(reply.statusCode, { ...headers, "content-length": whole.length });
      }
      return outgoing.end(streams ? undefined : whole);
    } catch (error) {
      if (outgoing.destroyed || outgoing.headersSent) return outgoing.destroy();
      if (Date.now() > until) return outgoing.writeHead(502).end(String(error));
      retried += 1;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}${targets[0].pathname}`));
process.on("SIGTERM", () => {
  writeFileSync(report, JSON.stringify({ replicas: targets.length, read, tasks: seen.size, retried, broken }));
  process.exit(0);
});
