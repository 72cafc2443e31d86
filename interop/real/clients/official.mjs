// OpenAI's and Anthropic's own clients for Node.
import { base, CALL, ENDLESS, hangUp, LONG, model, require, run, SAY, schema, SUNNY } from './dialogue.mjs'

const { OpenAI } = require('openai')
const { Anthropic } = require('@anthropic-ai/sdk')
const openai = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0, timeout: 300_000 })
const anthropic = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 300_000 })
const user = content => [{ role: 'user', content }]
const weather = { name: 'weather', description: 'The weather of a place.' }

const chatFields = f => ({ model, messages: user(SAY), temperature: 0, max_tokens: 200, ...f })
const chat = (f, options) => openai.chat.completions.create(chatFields(f), options)
const chatUsage = u => [u.prompt_tokens, u.completion_tokens, u.total_tokens]
const chatTools = [{ type: 'function', function: { ...weather, parameters: schema } }]
const chatCalls = m => (m.tool_calls ?? []).map(c => [c.function.name, JSON.parse(c.function.arguments)])

const respond = f => openai.responses.create({ model, input: SAY, temperature: 0, max_output_tokens: 200, ...f })
const responseTools = [{ type: 'function', strict: null, ...weather, parameters: schema }]
const responseOf = r => ({
  text: r.output_text, end: r.status, usage: [r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens],
  calls: r.output.filter(i => i.type === 'function_call').map(i => [i.name, JSON.parse(i.arguments)]),
})

const messageFields = f => ({ model, messages: user(SAY), temperature: 0, max_tokens: 200, ...f })
const message = f => anthropic.messages.create(messageFields(f))
const messageTools = [{ ...weather, input_schema: schema }]
const messageOf = m => ({
  text: m.content.filter(b => b.type === 'text').map(b => b.text).join(''), calls: m.content.filter(b => b.type === 'tool_use').map(b => [b.name, b.input]),
  end: m.stop_reason, usage: [m.usage.input_tokens + (m.usage.cache_read_input_tokens ?? 0) + (m.usage.cache_creation_input_tokens ?? 0), m.usage.output_tokens],
})

await run({
  async 'chat whole'() {
    const r = await chat()
    return { text: r.choices[0].message.content, end: r.choices[0].finish_reason, usage: chatUsage(r.usage), model: r.model }
  },
  async 'chat streamed'() {
    let text = '', end = null, usage = null
    for await (const c of await chat({ stream: true, stream_options: { include_usage: true } })) {
      for (const choice of c.choices) { text += choice.delta.content ?? ''; end = choice.finish_reason ?? end }
      if (c.usage) usage = chatUsage(c.usage)
    }
    return { text, end, usage }
  },
  async 'chat tool loop'() {
    const first = (await chat({ messages: user(CALL), tools: chatTools })).choices[0]
    const messages = [...user(CALL), first.message, { role: 'tool', tool_call_id: first.message.tool_calls[0].id, content: SUNNY }]
    const last = (await chat({ messages, tools: chatTools })).choices[0]
    return { calls: chatCalls(first.message), end: first.finish_reason, text: last.message.content, last: last.finish_reason }
  },
  async 'chat tool call streamed'() {
    const c = (await openai.chat.completions.stream(chatFields({ messages: user(CALL), tools: chatTools })).finalChatCompletion()).choices[0]
    return { calls: chatCalls(c.message), end: c.finish_reason }
  },
  'chat bad field': () => chat({ temperature: -1 }),
  'chat bad field streamed': () => chat({ temperature: -1, stream: true }),
  'chat unknown model': () => chat({ model: 'no-such-model' }),
  async 'chat hang-up'() {
    const s = await chat({ messages: user(ENDLESS), max_tokens: LONG, stream: true })
    return hangUp(s, () => s.controller.abort())
  },
  'responses whole': async () => responseOf(await respond()),
  async 'responses streamed'() {
    let deltas = '', last
    for await (const e of await respond({ stream: true })) { if (e.type === 'response.output_text.delta') deltas += e.delta; last = e }
    return { deltas, last: last.type, usage: [last.response.usage.input_tokens, last.response.usage.output_tokens] }
  },
  async 'responses tool loop'() {
    const first = await respond({ input: CALL, tools: responseTools })
    const call = first.output.find(i => i.type === 'function_call')
    const input = [...user(CALL), ...first.output, { type: 'function_call_output', call_id: call.call_id, output: SUNNY }]
    return { first: responseOf(first), last: responseOf(await respond({ input, tools: responseTools })) }
  },
  'responses bad field': () => respond({ temperature: -1 }),
  'responses unknown model': () => respond({ model: 'no-such-model' }),
  async 'responses hang-up'() {
    const s = await respond({ input: ENDLESS, max_output_tokens: LONG, stream: true })
    return hangUp(s, () => s.controller.abort())
  },
  'messages whole': async () => messageOf(await message()),
  'messages streamed': async () => messageOf(await anthropic.messages.stream(messageFields()).finalMessage()),
  async 'messages tool loop'() {
    const first = await message({ messages: user(CALL), tools: messageTools })
    const call = first.content.find(b => b.type === 'tool_use')
    const messages = [...user(CALL), { role: 'assistant', content: first.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: SUNNY }] }]
    return { first: messageOf(first), last: messageOf(await message({ messages, tools: messageTools })) }
  },
  'messages tool call streamed': async () => messageOf(await anthropic.messages.stream(messageFields({ messages: user(CALL), tools: messageTools })).finalMessage()),
  'messages bad field': () => message({ temperature: -1 }),
  'messages unknown model': () => message({ model: 'no-such-model' }),
  async 'messages hang-up'() {
    const s = await message({ messages: user(ENDLESS), max_tokens: LONG, stream: true })
    return hangUp(s, () => s.controller.abort())
  },
})
