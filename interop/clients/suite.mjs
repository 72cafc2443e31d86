// What the suites of the Node clients have in common: their flags, what a check
// says, when a server is at rest, and images.
//
// run prints one JSON object per check, {"check": NAME, "ok": BOOL, "detail":
// TEXT}, and last {"checks": COUNT}; it exits with 1 when any check failed.

import { inspect, isDeepStrictEqual, parseArgs } from 'node:util';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { crc32, deflateSync } from 'node:zlib';

export const { values: args, positionals: files } = parseArgs({
  allowPositionals: true,
  options: {
    'base-url': { type: 'string' },
    'admin-url': { type: 'string' },
    'idle-metric': { type: 'string', multiple: true, default: [] },
    'engine-state': { type: 'string', multiple: true, default: [] },
    'overlong-words': { type: 'string', default: '150000' },
    only: { type: 'string' },
  },
});
if (!args['base-url'] || !args['admin-url']) {
  console.error('--base-url and --admin-url are needed');
  process.exit(2);
}

export const ROOM = 16; // tokens of most answers
export const SAY = [{ role: 'user', content: 'Tell me about low dams.' }];
export const base = args['base-url'].replace(/\/+$/, '');

export const want = (condition, ...what) => {
  if (!condition) throw new Error(what.join(' ') || 'failed');
};
export const same = (got, expected, what) =>
  want(isDeepStrictEqual(got, expected), `${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(expected)}`);

// The sum of a metric's series; the metric must exist.
async function gauge(name) {
  const r = await fetch(args['admin-url'].replace(/\/+$/, '') + '/metrics');
  const values = (await r.text())
    .split('\n')
    .filter((line) => line.startsWith(name + '{') || line.startsWith(name + ' '))
    .map((line) => Number(line.slice(line.lastIndexOf(' '))));
  want(values.length > 0, `/metrics has no ${name}`);
  return values.reduce((a, b) => a + b);
}

// What an engine itself says it has.
async function engine(url) {
  const state = await (await fetch(url)).json();
  return state.running + state.waiting;
}

// Waits until nothing runs any more, in the gateway and in the engines.
export async function idle(seconds = 120) {
  const counts = [
    ...args['idle-metric'].map((name) => [name, () => gauge(name)]),
    ...args['engine-state'].map((url) => [url, () => engine(url)]),
  ];
  for (const [name, count] of counts) {
    const end = Date.now() + seconds * 1000;
    for (let value; (value = await count()) !== 0; await sleep(20)) {
      want(Date.now() < end, `${name} is ${value} after ${seconds} s`);
    }
  }
}

// An image of one shade of grey.
export function png(wide, high, shade) {
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const all = Buffer.alloc(8 + body.length);
    all.writeUInt32BE(data.length, 0);
    body.copy(all, 4);
    all.writeUInt32BE(crc32(body), 4 + body.length);
    return all;
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(wide, 0);
  head.writeUInt32BE(high, 4);
  head[8] = 8; // bits a pixel, grey
  const row = Buffer.alloc(1 + wide, shade);
  row[0] = 0; // no filter
  const rows = Buffer.concat(Array(high).fill(row));
  return Buffer.concat([
    Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), chunk('IHDR', head), chunk('IDAT', deflateSync(rows)), chunk('IEND', Buffer.alloc(0)),
  ]);
}

// Images' sizes and tokens: one for each 28 by 28 pixels, those at the edges counted whole.
const PATCHES = [[100, 57, 4 * 3], [28, 28, 1], [300, 200, 11 * 8]];

// The SHA-256 and tokens of the images that the simulated engines say they looked at.
export async function looked() {
  const seen = [];
  for (const url of args['engine-state']) {
    const media = await (await fetch(url.replace(/\/state$/, '/media'))).json();
    seen.push(...media.map((m) => `${m.kind} ${m.sha256} ${m.bytes} ${m.tokens}`));
  }
  return seen.sort();
}

const seenAs = (data, tokens) => `image ${createHash('sha256').update(data).digest('hex')} ${data.length} ${tokens}`;

// whole and streamed ask with an image, or without; they give what must be alike,
// and of gives an answer's text, prompt tokens and output tokens.
export async function see(whole, streamed, of) {
  const before = await looked();
  const sent = [];
  const [, bare] = of(await whole());
  for (const [wide, high, patches] of PATCHES) {
    const texts = [];
    for (const shade of [1, 1, 2]) {
      const image = png(wide, high, shade);
      const got = await whole(image);
      const [text, prompt, output] = of(got);
      same([text.split(/\s+/).filter(Boolean).length, prompt - bare, output], [ROOM, patches, ROOM], `words, tokens of an image of ${wide} by ${high} and of the answer`);
      same(await streamed(image), got, 'streamed');
      texts.push(text);
      sent.push(seenAs(image, patches), seenAs(image, patches));
    }
    same(texts[0], texts[1], 'the same image twice');
    want(texts[0] !== texts[2], 'another image, the same answer');
  }
  if (args['engine-state'].length) same(await looked(), [...before, ...sent].sort(), 'what the engines looked at');
  await idle();
}

// Runs the checks in the order in which they are written, or the one asked for.
export async function run(checks) {
  let failed = 0;
  const chosen = Object.entries(checks).filter(([name]) => !args.only || args.only === name);
  for (const [check, f] of chosen) {
    let detail = '';
    try {
      await f();
    } catch (e) {
      // A failed check is reported, whatever it threw.
      failed++;
      detail = e.constructor === Error ? e.message : String(e.stack) + (e.cause ? `\ncause: ${inspect(e.cause)}` : '');
    }
    console.log(JSON.stringify({ check, ok: !detail, detail }));
  }
  console.log(JSON.stringify({ checks: chosen.length }));
  process.exit(failed ? 1 : 0);
}
