// The official OpenAI Node client against an OpenAI-compatible server.
//
// It prints and exits as suite.mjs says. By hand:
//
//	node openai_node.mjs --base-url http://127.0.0.1:8000 \
//	    --admin-url http://127.0.0.1:8001 --idle-metric weir_requests_in_flight FILE ...
//
// The FILEs are prompts of real text. The server's own extension ignore_eos is
// used to make lengths certain, and its engine is expected to say one word for
// each token, as weir's simulated engine does: then a lost token shows.

import { readFile } from 'node:fs/promises';
import OpenAI from 'openai';
import { makeParseableTextFormat } from 'openai/lib/parser';
import { ROOM, SAY, args, base, files, idle, looked, png, run, same, see, want } from './suite.mjs';

const USAGE = { stream: true, stream_options: { include_usage: true } };
const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;

// Requests with this suite's defaults.
const defaults = { model, max_tokens: ROOM, seed: 7, ignore_eos: true };
const chat = (fields = {}, options) =>
  client.chat.completions.create({ ...defaults, messages: SAY, ...fields }, options);
const respond = (fields) => client.responses.create({ model, seed: 7, ...fields });
const complete = (fields = {}, options) =>
  client.completions.create({ ...defaults, prompt: 'Low dams', ...fields }, options);

// Sends bytes that no client library would send.
async function post(path, body, contentType = 'application/json') {
  const r = await fetch(base + path, { method: 'POST', body, headers: { 'content-type': contentType } });
  return { status: r.status, body: await r.json() };
}

// Reads a stream strictly; gives text, finish_reason and usage.
async function read(stream, asked) {
  let text = '';
  let id;
  let finish = null;
  let usage = null;
  let isChat;
  for await (const chunk of await stream) {
    if (id === undefined) {
      id = chunk.id;
      want(id, 'the chunk has no id');
      isChat = chunk.object === 'chat.completion.chunk';
      if (isChat) same(chunk.choices[0].delta.role, 'assistant', "first chunk's role");
    }
    same(chunk.id, id, "chunk's id");
    same(chunk.object, isChat ? 'chat.completion.chunk' : 'text_completion', "chunk's object");
    want(!usage, 'a chunk after usage');
    if (chunk.choices.length === 0) {
      want(asked, 'usage that was not asked for');
      want(finish, 'usage before finish_reason');
      usage = chunk.usage;
      want(usage, 'a chunk without choices and usage');
      continue;
    }
    want(!chunk.usage, 'usage beside choices');
    same(chunk.choices.length, 1, 'choices');
    const [choice] = chunk.choices;
    same(choice.index, 0, "choice's index");
    want(!finish, 'a chunk of the choice after its finish_reason');
    text += (isChat ? choice.delta.content : choice.text) ?? '';
    finish = choice.finish_reason;
  }
  want(finish, 'no finish_reason');
  same(Boolean(usage), asked, 'usage present');
  if (asked && finish === 'length') same(wordsIn(text), usage.completion_tokens, 'words');
  return { text, finish, usage };
}

const wordsIn = (text) => text.split(/\s+/).filter(Boolean).length;
const textOf = (r) => r.choices[0].message?.content ?? r.choices[0].text;

function sameUsage(got, expected) {
  for (const name of ['prompt_tokens', 'completion_tokens', 'total_tokens']) {
    same(got[name], expected[name], 'usage.' + name);
  }
  same(got.total_tokens, got.prompt_tokens + got.completion_tokens, 'total_tokens');
  want(got.prompt_tokens > 0, 'no prompt tokens');
}

// Runs f over items, some at a time.
async function pool(items, width, f) {
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const i = next++;
      await f(items[i], i);
    }
  };
  await Promise.all(Array.from({ length: width }, worker));
}

// An error must be the class that the client maps it to, name the field, and
// carry what the client shows its user.
async function fails(kind, status, param, make, { code, says = [] } = {}) {
  let made;
  try {
    made = await make();
  } catch (e) {
    if (!(e instanceof OpenAI.APIError)) throw e;
    same(e.constructor.name, kind.name, `class of ${e}`);
    same(e.status, status, 'status');
    if (param !== null) same(e.param, param, `param of ${e.message}`);
    if (code !== undefined) same(e.code, code, 'code');
    want(e.type, 'the error has no type');
    want(e.error?.message, 'the error has no message');
    want(e.requestID, 'the error has no request id');
    for (const word of says) want(e.error.message.includes(word), `${e.error.message} does not say ${word}`);
    return;
  }
  made.controller?.abort();
  throw new Error(`accepted; want ${kind.name} about ${param}`);
}

const { BadRequestError, NotFoundError } = OpenAI;

const dataURL = (data, type = 'image/png') => `data:${type};base64,${data.toString('base64')}`;
const chatWith = (...urls) => [{
  role: 'user',
  content: [{ type: 'text', text: SAY[0].content }, ...urls.map((url) => ({ type: 'image_url', image_url: { url } }))],
}];
const inputWith = (...urls) => [{
  role: 'user',
  content: [{ type: 'input_text', text: SAY[0].content }, ...urls.map((image_url) => ({ type: 'input_image', detail: 'auto', image_url }))],
}];

const checks = {
  async models() {
    const ids = [];
    for await (const m of client.models.list()) {
      same(m.object, 'model', 'object');
      ids.push(m.id);
    }
    want(ids.length > 0 && new Set(ids).size === ids.length, 'models', ids);
  },

  async chat() {
    const r = await chat();
    same([r.object, r.model, r.choices.length], ['chat.completion', model, 1], 'head');
    want(r.id && Math.abs(r.created - Date.now() / 1000) < 60, 'id', r.id, 'created', r.created);
    const [choice] = r.choices;
    same([choice.index, choice.message.role, choice.finish_reason], [0, 'assistant', 'length'], 'choice');
    same(wordsIn(choice.message.content), ROOM, 'words');
    same(r.usage.completion_tokens, ROOM, 'completion_tokens');
    sameUsage(r.usage, r.usage);
  },

  async chat_stream() {
    const whole = await chat();
    const got = await read(chat(USAGE), true);
    same([got.text, got.finish], [textOf(whole), 'length'], 'answer');
    sameUsage(got.usage, whole.usage);
  },

  async chat_stream_without_usage() {
    const got = await read(chat({ stream: true }), false);
    same([got.text, got.finish], [textOf(await chat()), 'length'], 'answer');
  },

  async chat_stream_helper() {
    const runner = client.chat.completions.stream({ ...defaults, messages: SAY });
    let text = '';
    runner.on('content', (delta) => (text += delta));
    const final = await runner.finalChatCompletion();
    same(text, textOf(await chat()), 'text of events');
    same(textOf(final), text, 'final text');
    same(final.choices[0].finish_reason, 'length', 'finish_reason');
  },

  async completion() {
    const r = await complete();
    same([r.object, r.model, r.choices.length], ['text_completion', model, 1], 'head');
    same([r.choices[0].index, r.choices[0].finish_reason, wordsIn(textOf(r))], [0, 'length', ROOM], 'choice');
    same(r.usage.completion_tokens, ROOM, 'completion_tokens');
    sameUsage(r.usage, r.usage);
  },

  async completion_stream() {
    const whole = await complete();
    const got = await read(complete(USAGE), true);
    same([got.text, got.finish], [textOf(whole), 'length'], 'answer');
    sameUsage(got.usage, whole.usage);
  },

  async prompt_of_ids() {
    const prompt = Array.from({ length: 40 }, (_, i) => 300 + i);
    const whole = await complete({ prompt });
    same(whole.usage.prompt_tokens, 40, 'prompt_tokens');
    const got = await read(complete({ prompt, ...USAGE }), true);
    same(got.text, textOf(whole), 'text');
    sameUsage(got.usage, whole.usage);
  },

  async max_tokens() {
    for (const n of [1, 2, 33]) {
      for (const r of [
        await chat({ max_tokens: n }),
        await chat({ max_tokens: undefined, max_completion_tokens: n }),
        await complete({ max_tokens: n }),
      ]) {
        same([r.usage.completion_tokens, r.choices[0].finish_reason], [n, 'length'], `max_tokens ${n}`);
      }
    }
  },

  async seed() {
    const texts = [];
    for (const seed of [1, 1, 2]) texts.push(textOf(await chat({ seed })));
    same(texts[0], texts[1], 'the same seed twice');
    want(texts[0] !== texts[2], 'another seed, the same answer');
  },

  async stop_string() {
    const text = textOf(await chat({ max_tokens: 64 }));
    for (const stop of [text.slice(20, 26), text.slice(31, 50), text.slice(0, 3)]) {
      const before = text.slice(0, text.indexOf(stop));
      const r = await chat({ max_tokens: 64, stop });
      same([textOf(r), r.choices[0].finish_reason], [before, 'stop'], `stop ${stop}`);
      const got = await read(chat({ max_tokens: 64, stop: [stop], ...USAGE }), true);
      same([got.text, got.finish], [before, 'stop'], `streamed, stop ${stop}`);
      sameUsage(got.usage, r.usage);
    }
  },

  async request_id() {
    const { response, request_id: id } = await chat({ max_tokens: 1 }, { headers: { 'X-Request-Id': 'interop-43' } }).withResponse();
    same([id, response.headers.get('x-request-id')], ['interop-43', 'interop-43'], 'given id');
  },

  async long_prompt() {
    const words = 'a low dam holds nothing back and shows how high the water stands '.split(' ');
    const content = Array.from({ length: 8000 }, (_, i) => words[(i * 7) % words.length]).join(' ').slice(0, 30000);
    same(content.length, 30000, 'characters');
    const messages = [{ role: 'user', content }];
    const whole = await chat({ messages });
    want(whole.usage.prompt_tokens > 3000, 'prompt_tokens', whole.usage.prompt_tokens);
    const got = await read(chat({ messages, ...USAGE }), true);
    same(got.text, textOf(whole), 'text');
    sameUsage(got.usage, whole.usage);
  },

  // Every file as a prompt, eight at a time, streamed and whole.
  async real_texts() {
    want(files.length >= 24, `only ${files.length} files of text`);
    await pool(files, 8, async (name, n) => {
      const prompt = (await readFile(name, 'utf8')).slice(0, 20000);
      const make = (more) =>
        n % 2 ? complete({ prompt, seed: n, ...more }) : chat({ messages: [{ role: 'user', content: prompt }], seed: n, ...more });
      const got = await read(make(USAGE), true);
      const whole = await make({});
      same([got.text, got.finish], [textOf(whole), 'length'], name);
      same(got.usage.completion_tokens, ROOM, name);
      sameUsage(got.usage, whole.usage);
    });
  },

  // 64 streams at once say what each says alone.
  async many_streams() {
    const alone = [];
    for (let seed = 0; seed < 4; seed++) alone.push(textOf(await chat({ seed })));
    await pool(Array.from({ length: 64 }), 64, async (_, n) => {
      const got = await read(chat({ seed: n % 4, ...USAGE }), true);
      same(got.text, alone[n % 4], `stream ${n}`);
    });
  },

  async abort_in_mid_stream() {
    for (const make of [chat, complete]) {
      for (const leave of ['break', 'signal']) {
        const controller = new AbortController();
        const stream = await make({ max_tokens: 2000, stream: true }, { signal: controller.signal });
        let seen = 0;
        try {
          for await (const _ of stream) {
            if (++seen < 5) continue;
            if (leave === 'break') break;
            controller.abort();
          }
        } catch (e) {
          if (!(e instanceof OpenAI.APIUserAbortError)) throw e;
        }
        want(seen >= 5 && seen < 1000, `${seen} chunks before the abort`);
        await idle();
      }
    }
  },

  async malformed_fields() {
    for (const stream of [false, true]) {
      for (const [param, value] of [
        ['max_tokens', -1], ['max_tokens', 0], ['max_tokens', 'many'], ['max_tokens', 1.5],
        ['temperature', -1], ['top_p', 2], ['seed', 'x'], ['stop', 7],
      ]) {
        await fails(BadRequestError, 400, param, () => chat({ [param]: value, stream }), { says: [param] });
        await fails(BadRequestError, 400, param, () => complete({ [param]: value, stream }), { says: [param] });
      }
    }
    await fails(BadRequestError, 400, 'messages', () => chat({ messages: [] }));
    await fails(BadRequestError, 400, 'messages', () => chat({ messages: undefined }));
    await fails(BadRequestError, 400, 'messages[0].content', () => chat({ messages: [{ role: 'user', content: 7 }] }));
    await fails(BadRequestError, 400, 'prompt', () => complete({ prompt: '' }));
    await fails(BadRequestError, 400, 'prompt', () => complete({ prompt: undefined }));
    await fails(BadRequestError, 400, 'stream', () => chat({ stream: 'yes' }));
  },

  async malformed_json() {
    const { status, body } = await post('/v1/chat/completions', '{\n  "model": "x",\n  "messages": [}');
    same(status, 400, 'status');
    want(/line 3/.test(body.error.message) && /column/.test(body.error.message), body.error.message);
  },

  async wrong_content_type() {
    const { status, body } = await post('/v1/chat/completions', JSON.stringify({ model, messages: SAY }), 'text/plain');
    same(status, 415, 'status');
    want(body.error.message.includes('application/json'), body.error.message);
  },

  async unknown_model() {
    for (const make of [chat, complete]) {
      for (const stream of [false, true]) {
        await fails(NotFoundError, 404, 'model', () => make({ model: 'no-such-model', stream }), {
          code: 'model_not_found', says: ['no-such-model', model],
        });
      }
    }
  },

  async unsupported_fields() {
    const tools = [{ type: 'function', function: { name: 'f', grammar: 'x', parameters: { type: 'object', properties: {} } } }];
    await fails(BadRequestError, 400, 'tools[0].function.grammar', () => chat({ tools }), { says: ['grammar'] });
    for (const fields of [{ n: 129 }, { top_logprobs: 3 }, { frobnicate: 1 }]) {
      const [param] = Object.keys(fields);
      for (const stream of [false, true]) {
        await fails(BadRequestError, 400, param, () => chat({ ...fields, stream }), { says: [param] });
      }
    }
    for (const fields of [{ n: 129 }, { logprobs: 21 }, { echo: true }, { best_of: 2 }, { suffix: 'x' }]) {
      const [param] = Object.keys(fields);
      await fails(BadRequestError, 400, param, () => complete(fields), { says: [param] });
    }
  },

  // The client's own loop: it calls the tool, sends its result back, and goes on.
  async tool_loop() {
    const cities = [];
    const runner = client.chat.completions.runTools({
      model, seed: 7, max_tokens: 600, stream: true, messages: SAY,
      tools: [{
        type: 'function',
        function: {
          name: 'get_weather', description: 'The weather in a city.', parse: JSON.parse,
          parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
          function: ({ city }) => { cities.push(city); return { degrees: 18 }; },
        },
      }],
    });
    const answer = await runner.finalContent();
    same(cities.length, 1, 'calls');
    want(typeof cities[0] === 'string' && cities[0], 'city', cities);
    want(wordsIn(answer) > 0, 'no answer');
    same(runner.messages.map((m) => m.role), ['user', 'assistant', 'tool', 'assistant'], 'roles');
  },

  async tool_calls() {
    const tools = [{ type: 'function', function: { name: 'now', parameters: { type: 'object', properties: { zone: { type: 'string' } }, required: ['zone'] } } }];
    const fields = { tools, ignore_eos: undefined, max_tokens: 600, chat_template_kwargs: { calls: 2, enable_thinking: true } };
    const whole = (await chat(fields)).choices[0];
    const final = await client.chat.completions.stream({ ...defaults, messages: SAY, ...fields }).finalChatCompletion();
    const plain = (m) => m.tool_calls.map((c) => [c.type, c.function.name, c.function.arguments]);
    same([whole.finish_reason, final.choices[0].finish_reason], ['tool_calls', 'tool_calls'], 'finish_reason');
    same(plain(final.choices[0].message), plain(whole.message), 'streamed calls');
    same(whole.message.tool_calls.length, 2, 'calls');
    for (const c of whole.message.tool_calls) want(typeof JSON.parse(c.function.arguments).zone === 'string', c.function.arguments);
    want(wordsIn(whole.message.reasoning_content) > 0, 'no reasoning');
    let reasoning = '';
    for await (const chunk of await chat({ ...fields, stream: true })) reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
    same(reasoning, whole.message.reasoning_content, 'streamed reasoning');
  },

  async responses() {
    const fields = { input: 'Low dams', instructions: 'Be brief.', max_output_tokens: ROOM, ignore_eos: true };
    const whole = await respond(fields);
    same([whole.status, whole.incomplete_details.reason, wordsIn(whole.output_text)], ['incomplete', 'max_output_tokens', ROOM], 'answer');
    same(whole.usage.input_tokens + ROOM, whole.usage.total_tokens, 'usage');
    let text = '', n = 0, last;
    for await (const event of await respond({ ...fields, stream: true })) {
      same(event.sequence_number, n++, event.type);
      if (event.type === 'response.output_text.delta') text += event.delta;
      last = event;
    }
    same([last.type, text, last.response.usage], ['response.incomplete', whole.output_text, whole.usage], 'streamed');
  },

  async responses_tool_loop() {
    const parameters = { type: 'object', properties: { river: { type: 'string' } }, required: ['river'], additionalProperties: false };
    const tools = [{ type: 'function', name: 'gauge', strict: true, parameters }];
    const asked = [{ role: 'user', content: 'How high is the river?' }];
    const fields = { model, seed: 7, tools, reasoning: { effort: 'low' } };
    const whole = await respond({ ...fields, input: asked });
    same(whole.output.map((o) => o.type), ['reasoning', 'function_call'], 'items');
    const final = await client.responses.stream({ ...fields, input: asked }).finalResponse();
    same([final.output[1].arguments, final.output[0].content], [whole.output[1].arguments, whole.output[0].content], 'streamed');
    same(final.output[1].parsed_arguments, JSON.parse(whole.output[1].arguments), 'parsed arguments');
    const result = { type: 'function_call_output', call_id: whole.output[1].call_id, output: '2 m' };
    const more = await respond({ input: [...asked, ...whole.output, result], tools, max_output_tokens: ROOM, ignore_eos: true });
    same([more.output.map((o) => o.type), wordsIn(more.output_text)], [['message'], ROOM], 'after the call');
  },

  async responses_parse() {
    const schema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'], additionalProperties: false };
    const format = makeParseableTextFormat({ type: 'json_schema', name: 'dam', strict: true, schema }, (text) => JSON.parse(text));
    const r = await client.responses.parse({ model, seed: 7, input: 'A low dam', text: { format } });
    want(typeof r.output_parsed?.name === 'string', JSON.stringify(r.output));
    const final = await client.responses.stream({ model, seed: 7, input: 'A low dam', text: { format } }).finalResponse();
    same(final.output_parsed, r.output_parsed, 'streamed');
  },

  async responses_reasoning() {
    const fields = { input: 'Low dams', reasoning: { effort: 'low' }, max_output_tokens: 200 };
    const whole = await respond(fields);
    const said = { 'response.reasoning_text.delta': '', 'response.output_text.delta': '' };
    for await (const event of await respond({ ...fields, stream: true })) {
      if (event.type in said) said[event.type] += event.delta;
    }
    same(Object.values(said), [whole.output[0].content[0].text, whole.output_text], 'streamed');
    want(whole.usage.output_tokens_details.reasoning_tokens >= wordsIn(whole.output[0].content[0].text), JSON.stringify(whole.usage));
  },

  async responses_logprobs() {
    const fields = { input: 'Low dams', max_output_tokens: ROOM, ignore_eos: true, top_logprobs: 1, include: ['message.output_text.logprobs'] };
    const entries = (list) => list.map((e) => [e.token, e.logprob, e.top_logprobs.map((t) => [t.token, t.logprob])]);
    const whole = await respond(fields);
    const part = whole.output[0].content[0];
    same(Buffer.from(part.logprobs.flatMap((e) => e.bytes)).toString().trim(), part.text.trim(), 'bytes');
    same(part.logprobs.map((e) => e.top_logprobs.length), Array(ROOM).fill(1), 'alternatives');
    const got = [];
    for await (const event of await respond({ ...fields, stream: true })) {
      if (event.type === 'response.output_text.delta') got.push(...entries(event.logprobs));
      if (event.type === 'response.output_text.done') same(entries(event.logprobs), got, 'at the end');
    }
    same(got, entries(part.logprobs), 'streamed');
  },

  async chat_images() {
    const messages = (image) => chatWith(...(image ? [dataURL(image)] : []));
    const of = (text, usage) => [text, usage.prompt_tokens, usage.completion_tokens];
    await see(
      async (image) => {
        const r = await chat({ messages: messages(image) });
        sameUsage(r.usage, r.usage);
        return of(textOf(r), r.usage);
      },
      async (image) => {
        const { text, usage } = await read(chat({ messages: messages(image), ...USAGE }), true);
        return of(text, usage);
      },
      (got) => got,
    );
  },

  async responses_images() {
    const fields = (image) => ({ input: inputWith(...(image ? [dataURL(image)] : [])), max_output_tokens: ROOM, ignore_eos: true });
    await see(
      async (image) => {
        const r = await respond(fields(image));
        return [r.output_text, r.usage.input_tokens, r.usage.output_tokens];
      },
      async (image) => {
        let text = '';
        let last;
        for await (last of await respond({ ...fields(image), stream: true })) {
          if (last.type === 'response.output_text.delta') text += last.delta;
        }
        same(last.type, 'response.incomplete', 'last event');
        return [text, last.response.usage.input_tokens, last.response.usage.output_tokens];
      },
      (got) => got,
    );
  },

  // Of what is no base64 the field is named; that it is no image the engine alone knows.
  async image_errors() {
    const image = png(28, 28, 1);
    const before = await looked();
    const bad = (param, make, says) => fails(BadRequestError, 400, param, make, { says });
    for (const stream of [false, true]) {
      for (const [param, make] of [
        ['messages[0].content[1].image_url.url', (url) => chat({ messages: chatWith(url), stream })],
        ['input[0].content[1].image_url', (url) => respond({ input: inputWith(url), stream })],
      ]) {
        await bad(param, () => make(dataURL(image).slice(0, -1)), [param, 'base64']);
        await bad(param, () => make(dataURL(image).slice(0, -3) + '!=='), [param, 'base64']);
        await bad(param, () => make(dataURL(image, 'image/gif')), [param, 'set it to image/png']);
        await bad(null, () => make(dataURL(Buffer.from('Low dams are no image.'))), ['image_data', 'not a PNG']);
      }
    }
    same(await looked(), before, 'what the engines looked at');
  },

  async responses_errors() {
    const input = 'Low dams';
    await fails(BadRequestError, 400, 'previous_response_id', () => respond({ input, previous_response_id: 'resp_1' }), { says: ['send the conversation in input'] });
    await fails(BadRequestError, 400, 'tool_choice', () => respond({ input, tools: [{ type: 'web_search' }], tool_choice: 'required', stream: true }), { says: ['web_search'] });
    await fails(NotFoundError, 404, null, () => client.responses.retrieve('resp_1'), { says: ['keeps no answers'] });
  },

  async over_long_prompt() {
    const text = 'weir '.repeat(Number(args['overlong-words']));
    const long = { code: 'context_length_exceeded', says: ['tokens'] };
    for (const stream of [false, true]) {
      await fails(BadRequestError, 400, 'messages', () => chat({ messages: [{ role: 'user', content: text }], stream }), long);
    }
    await fails(BadRequestError, 400, 'prompt', () => complete({ prompt: text }), long);
  },

  at_rest: () => idle(),
};

await run(checks);
