// Vercel's AI SDK, by each of its providers that speaks one of weir's dialects:
//
//	node ai.mjs URL
//	node ai.mjs broken URL    # where the engine breaks each stream
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

globalThis.AI_SDK_LOG_WARNINGS = false
const base = process.argv.at(-1).replace(/\/$/, '')
const openai = createOpenAI({ baseURL: base + '/v1', apiKey: 'none' })
const models = {
  responses: openai.responses('weir-sim'),
  chat: openai.chat('weir-sim'),
  compatible: createOpenAICompatible({ name: 'weir', baseURL: base + '/v1', apiKey: 'none', supportsStructuredOutputs: true, includeUsage: true })('weir-sim'),
  messages: createAnthropic({ baseURL: base + '/v1', apiKey: 'none' })('weir-sim'),
}
const prompt = 'What is the weather in Bern?'
const want = (ok, ...what) => { if (!ok) throw new Error(what.map(w => JSON.stringify(w)).join(' ')) }
const words = text => want(text.trim().split(/\s+/).length > 0 && /[a-z]/.test(text), text)

const broken = {
  async broken(model) {
    const failed = []
    const r = streamText({ model, prompt, maxRetries: 0, onError: e => failed.push(e.error?.message ?? JSON.stringify(e.error)) })
    let text = ''
    try {
      for await (const part of r.textStream) text += part
    } catch { // the connection breaks behind the reason
    }
    words(text)
    want(failed.length > 0 && failed[0].includes('engine'), 'the stream ended as if it were whole', failed, text)
  },
}

const whole = {
  async loop(model) {
    const called = []
    const weather = tool({ description: 'The weather of a city.', inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => { called.push(city); return 'rain' } })
    const r = await generateText({ model, prompt, tools: { weather }, stopWhen: stepCountIs(4), maxRetries: 0 })
    want(called.length === 1 && r.steps.length === 2, called, r.steps.length)
    words(r.text)
  },
  async stream(model) {
    const failed = []
    const r = streamText({ model, prompt, maxRetries: 0, onError: e => failed.push(String(e.error)) })
    let text = '', parts = 0
    for await (const part of r.textStream) { text += part; parts++ }
    want(failed.length === 0 && parts > 0 && (await r.usage).outputTokens > 0, failed, parts, await r.usage)
    words(text)
  },
  async object(model) {
    const { object } = await generateObject({ model, prompt, maxRetries: 0, schema: z.object({ city: z.string(), degrees: z.number().int() }) })
    want(typeof object.city === 'string' && Number.isInteger(object.degrees), object)
  },
}

const kinds = process.argv[2] === 'broken' ? broken : whole
let checks = 0, failed = 0
for (const [name, model] of Object.entries(models)) {
  for (const [kind, f] of Object.entries(kinds)) {
    let detail = ''
    try { await f(model) } catch (e) { detail = String(e.stack ?? e).slice(0, 2000) + ' ' + String(e.responseBody ?? ''); failed++ }
    console.log(JSON.stringify({ check: `${name}_${kind}`, ok: detail === '', detail }))
    checks++
  }
}
console.log(JSON.stringify({ checks }))
process.exit(failed > 0 ? 1 : 0)
