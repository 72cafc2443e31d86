// Package promptkey gives the prompt of a request whose tokens weir does not know, as a
// chain of blocks of a [kvindex.Index]: requests whose prompts begin alike have chains
// that begin alike.
//
// An engine that is relayed tokenizes for itself, so its prompts are told apart by
// *canonical text*: what a chat template is given, in the order in which it is written
// (tools, system prompt, messages), with marks between that no text can hold. The body's
// bytes would not do. Their fields come in any order, and white space, escapes and fields
// that change no prompt, as temperature, would part what an engine has in one place in
// its cache.
//
// # What is noticed
//
//   - In the text: each tool (its name, description, parameters and whatever else it
//     holds), the system prompt, and each message's role, name, reasoning, text, media,
//     calls of tools and their results, in their order.
//   - In the root, so that prompts that differ in it share nothing: the caller's root,
//     which stands for the model, and the fields of the body that may change a prompt from
//     its beginning on: arguments of the chat template, effort and thinking, tool_choice
//     where it is "none" or names a tool, adapters, salts and keys of caches, truncation
//     and arguments of media processors. The field table is in fields.go.
//   - Objects that weir knows, as a message, may have their members in any order, and a
//     member that is null is not there. The order inside of what a client wrote freely,
//     as a tool's parameters, counts: templates write it as it came. Arguments of a
//     tool's call count as the text that they are.
//   - A content of one part of text is that text. Media are known by a hash of the part.
//   - The line that begins with x-anthropic-billing-header in a system prompt is left
//     out, as vLLM leaves it out: it is another in each request of Claude Code.
//
// # What is not
//
//   - How many tokens it is. [Ratio] learns how many there are to a byte.
//   - What only ends a prompt: add_generation_prompt, continue_final_message.
//   - response_format and its likes, which a few templates write into the prompt.
//   - What a template leaves out, as earlier reasoning: a conversation that is sent
//     without it once shares nothing from that message on, though the engine may.
//   - Prompts that engines keep for a client (previous_response_id) or get by another
//     name: they have no chain.
//
// A body that cannot be read has no chain either, and that is all that happens to it.
//
// The body is passed over about three times, eight bytes at a time where it is text, and
// nothing is allocated but room for blocks.
package promptkey
