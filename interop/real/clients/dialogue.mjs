// What the dialogues of the Node clients have in common, as in dialogue.py. NODE_FOLDER is
// the folder whose node_modules has the clients.
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export const require = createRequire(join(process.env.NODE_FOLDER, 'package.json'))
export const [base, engine] = process.argv.slice(2, 4).map(url => url.replace(/\/$/, ''))
export const model = 'tiny'

const say = text => `say:${Buffer.from(text).toString('base64')}.`
export const SAY = say('The weir holds the river back, 世界.')
export const CALL = say('<tool_call>\n{"name": "weather", "arguments": {"n": 5}}\n</tool_call>')
export const SUNNY = say('Sunny.')
export const ENDLESS = 'slowly: Hello'
export const LONG = 3000
export const schema = { type: 'object', properties: { n: { type: 'integer', minimum: 1, maximum: 9 } }, required: ['n'], additionalProperties: false }

async function metric(name) {
  const text = await (await fetch(engine + '/metrics')).text()
  return text.split('\n').filter(l => l.startsWith(name + '{') || l.startsWith(name + ' ')).reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(' '))), 0)
}

// Reads five parts of a long answer, and leaves: the engine must end it long before it would.
export async function hangUp(stream, leave) {
  const before = await metric('vllm:generation_tokens_total')
  let parts = 0
  try {
    for await (const part of stream) if (part !== undefined && ++parts === 5) leave()
  } catch (e) {
    if (parts < 5) throw e
  }
  for (const end = Date.now() + 120_000; await metric('vllm:num_requests_running') > 0; await sleep(50)) {
    if (Date.now() > end) return { engine: 'still runs' }
  }
  return { engine: await metric('vllm:generation_tokens_total') - before < LONG * 2 / 3 ? 'ended early' : 'went on to the end' }
}

// An error as a caller sees it: its class, its status, and the field that it names.
function failure(e) {
  e = e.lastError ?? e
  const status = e.status ?? e.statusCode
  if (status === undefined) return { broke: String(e.stack ?? e).slice(0, 1500) }
  return { error: e.constructor.name, status, names: ['temperature', 'top_p', 'no-such-model'].filter(n => (e.message + e.responseBody).includes(n)) }
}

export async function run(dialogues) {
  for (const [dialogue, f] of Object.entries(dialogues)) {
    const outcome = await f().catch(failure)
    console.log(JSON.stringify({ dialogue, outcome }))
  }
  process.exit(0)
}
