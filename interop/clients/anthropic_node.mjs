// The official Anthropic Node client against a server of the Messages API.
//
// It prints and exits as suite.mjs says. By hand:
//
//	node anthropic_node.mjs --base-url http://127.0.0.1:8000 \
//	    --admin-url http://127.0.0.1:8001 --idle-metric weir_requests_in_flight
//
// The engine is expected to say what weir's simulated one does, as in
// anthropic_python.py, which checks more.

import Anthropic from '@anthropic-ai/sdk';
import { ROOM, SAY, base, idle, looked, png, run, same, see, want } from './suite.mjs';

const client = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 120_000 });
const model = (await (await fetch(base + '/v1/models')).json()).data[0].id;

const fields = (f) => ({ model, max_tokens: ROOM, messages: SAY, ...f });
const create = (f = {}) => client.messages.create(fields(f));
const streamed = (f = {}) => client.messages.stream(fields(f)).finalMessage();
const textOf = (m) => m.content.filter((b) => b.type === 'text').map((b) => b.text).join('');

// What must be the same of a streamed and a whole message.
const plain = (m) => [
  m.content.map((b) => JSON.parse(JSON.stringify({ ...b, id: undefined }))), m.stop_reason, m.stop_sequence,
  m.usage.input_tokens + (m.usage.cache_read_input_tokens ?? 0), m.usage.output_tokens,
];

const WEATHER = {
  name: 'get_weather', description: 'The weather in a city.',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

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
        ['not a PNG', imageBlock(Buffer.from('Low dams are no image.').toString('base64'))], // which the engine alone knows
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

await run(checks);
