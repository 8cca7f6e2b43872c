// Saves a thread's sandbox, forks the checkpoint and reads a file of the fork.
// Usage: node example.js THREAD PATH, with NATS_URL and NATS_TOKEN set.
import { connect } from "@nats-io/transport-node";

const [thread, path] = process.argv.slice(2);
const nc = await connect({ servers: process.env.NATS_URL, token: process.env.NATS_TOKEN });

async function ask(subject, request) {
  const reply = await nc.request(`sandbox.${subject}`, JSON.stringify(request), { timeout: 30_000 });
  const body = reply.json();
  if (body.error) throw new Error(`${body.error.code}: ${body.error.message}`);
  return body;
}

try {
  const saved = await ask("snapshot.save", { threadId: thread, runId: "js", label: "from JavaScript" });
  const root = await ask("fork", { threadId: thread, checkpointId: saved.id, destinationThreadId: `${thread}-fork` });
  const file = await ask("file.read", { checkpointId: root.id, path });
  console.log(JSON.stringify({ saved: saved.id, root: root.id, reason: root.reason, text: Buffer.from(file.data, "base64").toString() }));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await nc.close();
}
