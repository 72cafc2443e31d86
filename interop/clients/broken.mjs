// The official Node clients read streams that break after some tokens: each throws, and says why.
//
//	node broken.mjs --base-url http://127.0.0.1:8000
//
// It prints a line of JSON for each check, as suite.mjs says.

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { parseArgs } from 'node:util';

const base = parseArgs({ options: { 'base-url': { type: 'string' } } }).values['base-url'];
const oai = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const ant = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const model = 'weir-sim';
const messages = [{ role: 'user', content: 'Tell me about low dams.' }];

const checks = {
  async *chat() {
    for await (const c of await oai.chat.completions.create({ model, messages, max_tokens: 64, stream: true })) yield c.choices[0]?.delta?.content;
  },
  async *chat_helper() {
    const s = oai.chat.completions.stream({ model, messages, max_tokens: 64 });
    for await (const c of s) yield c.choices[0]?.delta?.content;
    await s.finalChatCompletion();
  },
  async *completions() {
    for await (const c of await oai.completions.create({ model, prompt: 'Low dams', max_tokens: 64, stream: true })) yield c.choices[0]?.text;
  },
  async *responses() {
    for await (const e of await oai.responses.create({ model, input: messages, max_output_tokens: 64, stream: true })) yield e.type === 'response.output_text.delta' ? e.delta : '';
  },
  async *responses_helper() {
    const s = oai.responses.stream({ model, input: messages, max_output_tokens: 64 });
    for await (const e of s) yield e.type === 'response.output_text.delta' ? e.delta : '';
    await s.finalResponse();
  },
  async *messages() {
    for await (const e of await ant.messages.create({ model, messages, max_tokens: 64, stream: true })) yield e.delta?.text;
  },
  async *messages_helper() {
    const s = ant.messages.stream({ model, messages, max_tokens: 64 });
    for await (const e of s) yield e.delta?.text;
    await s.finalMessage();
  },
};
for (const [check, read] of Object.entries(checks)) {
  let text = '';
  let ok = false;
  let detail = 'the stream ended as if it were whole';
  try {
    for await (const piece of read()) text += piece ?? '';
  } catch (e) {
    ok = text !== '' && e.message.length > 20 && !e.message.includes('onnection error') && (e instanceof OpenAI.OpenAIError || e instanceof Anthropic.AnthropicError);
    detail = `${e.constructor.name}: ${e.message} (after ${JSON.stringify(text)})`;
  }
  console.log(JSON.stringify({ check, ok, detail }));
}
console.log(JSON.stringify({ checks: Object.keys(checks).length }));
