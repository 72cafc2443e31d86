// Package promptkey computes a chain of blocks of a [kvindex.Index] for a request whose
// tokens weir does not know. Requests whose prompts have a common beginning have chains
// with a common beginning.
//
// A relayed engine tokenizes the prompts itself, so prompts are compared by their
// *canonical text*: the input of the chat template in the order in which it is rendered
// (tools, system prompt, messages), separated by marks that cannot occur in text.
// Comparing the bytes of the body would not work. JSON fields may have any order, and
// white space, escapes and fields such as temperature would separate prompts that share
// blocks in the engine's cache.
//
// # What distinguishes prompts
//
//   - In the text: each tool (its name, description, parameters and all other members),
//     the system prompt, and each message's role, name, reasoning, text, media, calls of
//     tools and their results, in their order.
//   - In the root, so that prompts that differ in it share nothing: the caller's root,
//     which stands for the model, and the fields of the body that may change a prompt from
//     its beginning on: arguments of the chat template, effort and thinking, tool_choice
//     where it is "none" or names a tool, adapters, salts and keys of caches, truncation
//     and arguments of media processors. The field table is in fields.go.
//   - In objects that weir knows, such as a message, the order of the members does not
//     matter, and a null member is the same as no member. In objects that the client
//     defines, such as a tool's parameters, the order matters, because templates write it
//     unchanged. The arguments of a tool call are compared as text.
//   - A content with a single part of text equals that text. Media are represented by a
//     hash of the part.
//   - The line that begins with x-anthropic-billing-header in a system prompt is left out,
//     as in vLLM: it differs between the requests of Claude Code.
//
// # What is not
//
//   - The number of tokens. [Ratio] learns the number of tokens per byte.
//   - Fields that change only the end of a prompt: add_generation_prompt,
//     continue_final_message.
//   - response_format and similar fields, which a few templates write into the prompt.
//   - Parts that a template leaves out, such as earlier reasoning. If a client sends a
//     conversation once with such a part and once without it, the chains differ from that
//     message on, although the engine may share the blocks.
//   - Prompts that the engine stores (previous_response_id) or fetches by reference: they
//     have no chain.
//
// A body that cannot be parsed has no chain, which has no other consequence.
//
// The body is scanned about three times, text eight bytes at a time. Only the blocks are
// allocated.
package promptkey
