// A client that reads by fetch, and takes its time for each part, has the reason when its stream
// breaks. fetch drops what was not read when a response breaks.
//
//	node slow_fetch.mjs --base-url http://127.0.0.1:8000
//
// It prints a line of JSON for each check, as suite.mjs says.

import { parseArgs } from 'node:util';

const base = parseArgs({ options: { 'base-url': { type: 'string' } } }).values['base-url'];
const messages = [{ role: 'user', content: 'Tell me about low dams.' }];
const asks = {
  chat: { path: '/v1/chat/completions', body: { messages, max_tokens: 64 }, reason: /"error":\{/ },
  completions: { path: '/v1/completions', body: { prompt: 'Low dams', max_tokens: 64 }, reason: /"error":\{/ },
  responses: { path: '/v1/responses', body: { input: messages, max_output_tokens: 64 }, reason: /response\.failed|"type":"error"/ },
  messages: { path: '/v1/messages', body: { messages, max_tokens: 64 }, reason: /event: error/ },
};
for (const [check, ask] of Object.entries(asks)) {
  let text = '', end = 'it ended as if it were whole';
  try {
    const r = await fetch(base + ask.path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ model: 'weir-sim', stream: true, ...ask.body }) });
    const decoder = new TextDecoder();
    for await (const part of r.body) {
      text += decoder.decode(part, { stream: true });
      await new Promise(r => setTimeout(r, 25)); // the engine takes 10 ms for each
    }
  } catch (e) {
    end = e.message;
  }
  console.log(JSON.stringify({ check, ok: ask.reason.test(text), detail: `${end}, after ${JSON.stringify(text.slice(-200))}` }));
}
console.log(JSON.stringify({ checks: Object.keys(asks).length }));
