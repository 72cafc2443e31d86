// The official Anthropic Node client against a server of the Messages API.
//
// Prints one JSON object per check, {"check": NAME, "ok": BOOL, "detail":
// TEXT}, and last {"checks": COUNT}; exits with 1 when any check failed. By
// hand:
//
//	node anthropic_node.mjs --base-url http://127.0.0.1:8000 \
//	    --admin-url http://127.0.0.1:8001 --idle-metric weir_requests_in_flight
//
// The engine is expected to say what weir's simulated one does, as in
// anthropic_python.py, which checks more.

import { isDeepStrictEqual, parseArgs } from 'node:util';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { crc32, deflateSync } from 'node:zlib';
import Anthropic from '@anthropic-ai/sdk';

const { values: args } = parseArgs({
  allowPositionals: true, // FILEs, which are not used
  options: {
    'base-url': { type: 'string' },
    'admin-url': { type: 'string' },
    'idle-metric': { type: 'string', multiple: true, default: [] },
    'engine-state': { type: 'string', multiple: true, default: [] },
    only: { type: 'string' },
  },
});
if (!args['base-url'] || !args['admin-url']) {
  console.error('--base-url and --admin-url are needed');
  process.exit(2);
}

const ROOM = 16; // tokens of most answers
const SAY = [{ role: 'user', content: 'Tell me about low dams.' }];
const base = args['base-url'].replace(/\/+$/, '');
const client = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 120_000 });
const model = (await (await fetch(base + '/v1/models')).json()).data[0].id;

const want = (condition, ...what) => {
  if (!condition) throw new Error(what.join(' ') || 'failed');
};
const same = (got, expected, what) =>
  want(isDeepStrictEqual(got, expected), `${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(expected)}`);

const fields = (f) => ({ model, max_tokens: ROOM, messages: SAY, ...f });
const create = (f = {}) => client.messages.create(fields(f));
const streamed = (f = {}) => client.messages.stream(fields(f)).finalMessage();
const textOf = (m) => m.content.filter((b) => b.type === 'text').map((b) => b.text).join('');

// What must be the same of a streamed and a whole message.
const plain = (m) => [
  m.content.map((b) => JSON.parse(JSON.stringify({ ...b, id: undefined }))), m.stop_reason, m.stop_sequence,
  m.usage.input_tokens + (m.usage.cache_read_input_tokens ?? 0), m.usage.output_tokens,
];

// Waits until nothing runs any more, in the gateway and in the engines.
async function idle(seconds = 30) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const metrics = await (await fetch(args['admin-url'].replace(/\/+$/, '') + '/metrics')).text();
    let n = 0;
    for (const name of args['idle-metric']) {
      const lines = metrics.split('\n').filter((l) => l.startsWith(name + '{') || l.startsWith(name + ' '));
      want(lines.length > 0, '/metrics has no', name);
      for (const l of lines) n += Number(l.slice(l.lastIndexOf(' ')));
    }
    for (const url of args['engine-state']) {
      const state = await (await fetch(url)).json();
      n += state.running + state.waiting;
    }
    if (n === 0) return;
    want(Date.now() < end, `${n} still run after ${seconds} s`);
    await sleep(20);
  }
}

const WEATHER = {
  name: 'get_weather', description: 'The weather in a city.',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

// An image of one shade of grey.
function png(wide, high, shade) {
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
async function looked() {
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
async function see(whole, streamed, of) {
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

const imageBlock = (data, media_type = 'image/png') => ({ type: 'image', source: { type: 'base64', media_type, data } });
const withImages = (...blocks) => [{ role: 'user', content: [{ type: 'text', text: SAY[0].content }, ...blocks] }];

const checks = {
  async whole() {
    const m = await create();
    same([m.type, m.role, m.model, m.stop_reason], ['message', 'assistant', model, 'max_tokens'], 'message');
    same([textOf(m).split(/\s+/).filter(Boolean).length, m.usage.output_tokens], [ROOM, ROOM], 'words');
    want(m._request_id, 'no request id');
  },
  async streamed() {
    for (const max_tokens of [1, 200]) same(plain(await streamed({ max_tokens })), plain(await create({ max_tokens })), `${max_tokens} tokens`);
    const seen = [];
    for await (const e of await create({ stream: true })) seen.push(e.type);
    same([seen[0], seen.at(-1)], ['message_start', 'message_stop'], 'events');
  },
  async tool_loop() {
    const messages = [...SAY];
    let turns = 0;
    let m;
    for (;; turns++) {
      m = await streamed({ messages, tools: [WEATHER], max_tokens: 600 });
      messages.push({ role: 'assistant', content: m.content });
      if (m.stop_reason !== 'tool_use') break;
      for (const b of m.content) same([b.type, b.name, typeof b.input.city], ['tool_use', 'get_weather', 'string'], 'call');
      messages.push({ role: 'user', content: m.content.map((b) => ({ type: 'tool_result', tool_use_id: b.id, content: '18' })) });
    }
    same([turns, m.stop_reason], [1, 'end_turn'], 'turns before the answer');
    want(textOf(m).trim(), 'no answer');
  },
  async tool_choice() {
    const m = await create({ tools: [WEATHER], tool_choice: { type: 'tool', name: 'get_weather' }, max_tokens: 600 });
    same([m.stop_reason, m.content.map((b) => b.name)], ['tool_use', ['get_weather']], 'forced');
  },
  async thinking() {
    const m = await create({ thinking: { type: 'adaptive' }, max_tokens: 2000 });
    same(m.content.map((b) => b.type), ['thinking', 'text'], 'blocks');
    same(plain(await streamed({ thinking: { type: 'adaptive' }, max_tokens: 2000 })), plain(m), 'streamed');
  },
  async structured_output() {
    const schema = { type: 'object', properties: { sizes: { type: 'array', items: { type: 'integer' } } }, required: ['sizes'] };
    const m = await create({ max_tokens: 600, output_config: { format: { type: 'json_schema', schema } } });
    want(JSON.parse(textOf(m)).sizes.every(Number.isInteger), textOf(m));
  },
  async count_tokens() {
    for (const f of [{}, { system: 'Be brief.' }, { tools: [WEATHER] }]) {
      const { input_tokens } = await client.messages.countTokens({ model, messages: SAY, ...f });
      same(input_tokens, plain(await create(f))[3], 'tokens');
    }
  },
  async images() {
    const messages = (image) => withImages(...(image ? [imageBlock(image.toString('base64'))] : []));
    await see(
      async (image) => plain(await create({ messages: messages(image) })),
      async (image) => plain(await streamed({ messages: messages(image) })),
      ([content, , , prompt, output]) => [content.map((b) => b.text).join(''), prompt, output],
    );
  },
  async abort_in_mid_stream() {
    const stream = client.messages.stream(fields({ max_tokens: 4000 }));
    let n = 0;
    for await (const e of stream) if (e.type === 'content_block_delta' && ++n === 5) break;
    stream.abort();
    await idle();
  },
  async errors() {
    const image = png(28, 28, 1).toString('base64');
    const before = await looked();
    for (const [kind, status, type, says, f] of [
      [Anthropic.BadRequestError, 400, 'invalid_request_error', 'max_tokens', { max_tokens: 0 }],
      [Anthropic.BadRequestError, 400, 'invalid_request_error', 'messages is empty', { messages: [] }],
      ...[
        ['messages[0].content[1].source', { type: 'image' }],
        ['messages[0].content[1].source.data is not base64', imageBlock(image.slice(0, -1))],
        ['messages[0].content[1].source.data is not base64', imageBlock(image.slice(0, -3) + '!==')],
        ['messages[0].content[1].source.media_type', imageBlock(image, 'image/gif')],
        ['no PNG', imageBlock(Buffer.from('Low dams are no image.').toString('base64'))], // which the engine alone knows
      ].map(([says, block]) => [Anthropic.BadRequestError, 400, 'invalid_request_error', says, { messages: withImages(block) }]),
      [Anthropic.NotFoundError, 404, 'not_found_error', 'no-such-model', { model: 'no-such-model' }],
    ]) {
      for (const stream of [false, true]) {
        const e = await create({ stream, ...f }).then(() => null, (e) => e);
        want(e instanceof kind, `${e} is no ${kind.name}`);
        same([e.status, e.error.type, e.error.error.type], [status, 'error', type], 'error');
        want(e.error.error.message.includes(says) && e.requestID, e.error.error.message);
      }
    }
    same(await looked(), before, 'what the engines looked at');
  },
  at_rest: () => idle(),
};

let failed = 0;
const chosen = Object.entries(checks).filter(([name]) => args.only === undefined || args.only === name);
for (const [check, run] of chosen) {
  let detail = '';
  try {
    await run();
  } catch (e) {
    failed++;
    detail = e.stack ?? String(e);
  }
  console.log(JSON.stringify({ check, ok: detail === '', detail }));
}
console.log(JSON.stringify({ checks: chosen.length }));
process.exit(failed > 0 ? 1 : 0);
