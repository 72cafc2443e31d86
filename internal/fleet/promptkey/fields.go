package promptkey

import (
	"weir/internal/dialect"
	"weir/internal/fleet/kvindex"
)

// The fields that hold prompts.
const (
	fieldMessages = iota
	fieldSystem
	fieldTools
	fieldPrompt
	fieldInput
	fieldInstructions
	fieldInputIDs
	fieldQuery
	fieldDocuments
	fieldElsewhere // a prompt that the engine keeps, or knows by name
	numFields
)

// The treatments of a field that is not among those above.
const (
	inRoot   = iota + numFields // changes the prompt, from wherever on
	inEffort                    // an object of which only the effort and the type change it
	inChoice                    // tool_choice
)

// fields are the fields of a body that change its prompt. Names specific to an engine
// are those of vLLM and SGLang.
var fields = map[string]int{
	"messages": fieldMessages, "system": fieldSystem, "tools": fieldTools, "prompt": fieldPrompt,
	"input": fieldInput, "instructions": fieldInstructions, "input_ids": fieldInputIDs,
	"query": fieldQuery, "queries": fieldQuery, "text_1": fieldQuery, "data_1": fieldQuery,
	"documents": fieldDocuments, "items": fieldDocuments, "text_2": fieldDocuments, "data_2": fieldDocuments,
	"previous_response_id": fieldElsewhere, "conversation": fieldElsewhere,

	"tool_choice": inChoice, "thinking": inEffort, "reasoning": inEffort, "output_config": inEffort,

	"reasoning_effort": inRoot, "chat_template": inRoot, "chat_template_kwargs": inRoot, "functions": inRoot,
	"task": inRoot, "suffix": inRoot, "add_special_tokens": inRoot,
	"truncate_prompt_tokens": inRoot, "truncation_side": inRoot, "truncation": inRoot,
	"lora_path": inRoot, "lora_id": inRoot, "lora_request": inRoot,
	"cache_salt": inRoot, "extra_key": inRoot, "prompt_embeds": inRoot,
	"mm_processor_kwargs": inRoot, "media_io_kwargs": inRoot, "images_config": inRoot, "video_config": inRoot,
	"use_audio_in_video": inRoot, "max_dynamic_patch": inRoot, "min_dynamic_patch": inRoot,
}

// fields finds what of the body changes the prompt: the values that hold it, and the
// root, into which all else goes.
func (r *Reader) fields(h *dialect.Head, root kvindex.Block) (f [numFields][]byte, _ kvindex.Block) {
	var sum uint64
	for i := range h.Fields {
		at := &h.Fields[i]
		what, known := fields[at.Name]
		if !known {
			continue
		}
		raw := h.Body[at.Start:at.End]
		if none(raw) {
			continue
		}
		switch what {
		default:
			f[what] = raw
			continue
		case inEffort:
			if raw = r.effort(raw); raw == nil {
				continue
			}
		case inChoice:
			if raw = r.choice(raw); raw == nil {
				continue
			}
		case inRoot:
		}
		r.side.begin(0, nil, 0)
		r.side.word(at.Name)
		sum += r.digest(kvindex.Block(r.side.end()), raw, 0)
	}
	if sum != 0 {
		r.side.begin(root, nil, 0)
		r.side.uint64(sum)
		root = kvindex.Block(r.side.end())
	}
	return f, root
}

// effort returns of thinking and its likes the member that changes a prompt.
func (r *Reader) effort(raw []byte) []byte {
	if raw[0] != '{' {
		return raw
	}
	m, _ := r.object(&cursor{b: raw}, func(name []byte) int {
		switch string(name) {
		case "effort":
			return 0
		case "type":
			return 1
		}
		return ignored
	})
	if !none(m[0]) {
		return m[0]
	}
	return m[1]
}

// choice returns tool_choice where an engine may leave tools out of the prompt for it:
// it is "none", or names one. Its other values ask for nothing that a template shows.
func (r *Reader) choice(raw []byte) []byte {
	if raw[0] != '"' {
		return raw
	}
	if string(r.spelled(raw)) == "none" {
		return raw
	}
	return nil
}
