// Vercel's AI SDK, by each of its providers that speaks one of the dialects.
import { base, CALL, ENDLESS, hangUp, LONG, model, require, run, SAY, SUNNY } from './dialogue.mjs'

const { createAnthropic } = require('@ai-sdk/anthropic')
const { createOpenAI } = require('@ai-sdk/openai')
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible')
const { generateText, stepCountIs, streamText, tool } = require('ai')
const { z } = require('zod')

globalThis.AI_SDK_LOG_WARNINGS = false
const openai = createOpenAI({ baseURL: base + '/v1', apiKey: 'none' })
const providers = {
  chat: openai.chat,
  compatible: createOpenAICompatible({ name: 'weir', baseURL: base + '/v1', apiKey: 'none', includeUsage: true }),
  responses: openai.responses,
  messages: createAnthropic({ baseURL: base + '/v1', apiKey: 'none' }),
}
const dialogues = {}
for (const [api, provider] of Object.entries(providers)) {
  const fields = f => ({ model: provider(model), prompt: SAY, temperature: 0, maxOutputTokens: 200, maxRetries: 0, ...f })
  const weather = called => ({ weather: tool({ description: 'The weather of a place.', inputSchema: z.object({ n: z.number().int() }), execute: async ({ n }) => { called.push(n); return SUNNY } }) })
  Object.assign(dialogues, {
    async [api + ' whole']() {
      const r = await generateText(fields())
      return { text: r.text, end: r.finishReason, usage: [r.usage.inputTokens, r.usage.outputTokens] }
    },
    async [api + ' streamed']() {
      const errors = []
      const r = streamText(fields({ onError: e => errors.push(String(e.error)) }))
      let text = ''
      for await (const part of r.textStream) text += part
      const usage = await r.usage
      return { text, end: await r.finishReason, usage: [usage.inputTokens, usage.outputTokens], errors }
    },
    async [api + ' tool loop']() {
      const called = []
      const r = await generateText(fields({ prompt: CALL, tools: weather(called), stopWhen: stepCountIs(4) }))
      return { called, steps: r.steps.length, text: r.text }
    },
    async [api + ' tool loop streamed']() {
      const called = []
      const r = streamText(fields({ prompt: CALL, tools: weather(called), stopWhen: stepCountIs(4) }))
      await r.consumeStream()
      return { called, steps: (await r.steps).length, text: await r.text }
    },
    [api + ' bad field']: () => generateText(fields({ topP: 7 })),
    [api + ' unknown model']: () => generateText(fields({ model: provider('no-such-model') })),
    async [api + ' hang-up']() {
      const leave = new AbortController()
      const r = streamText(fields({ prompt: ENDLESS, maxOutputTokens: LONG, abortSignal: leave.signal }))
      return hangUp(r.textStream, () => leave.abort())
    },
  })
}
await run(dialogues)
