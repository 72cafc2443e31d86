package kvevents

import (
	"github.com/tinylib/msgp/msgp"
)

// form is how an engine writes its events.
type form int

const (
	vllmMap form = iota // vLLM since June 2026
	vllmArray
	sglangArray // SGLang 0.5.6 to 0.5.20
	sglangMap   // and later
)

// batchOf encodes events as an engine does.
func batchOf(f form, events ...Event) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1789095808.83)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for i := range events {
		b = appendEvent(b, f, &events[i])
	}
	return msgp.AppendInt(b, 0)
}

func appendEvent(b []byte, f form, e *Event) []byte {
	type member struct {
		name  string
		value func(b []byte) []byte
	}
	text := func(s string) func([]byte) []byte {
		return func(b []byte) []byte {
			if s == "" {
				return msgp.AppendNil(b)
			}
			return msgp.AppendString(b, s)
		}
	}
	integer := func(n int) func([]byte) []byte { return func(b []byte) []byte { return msgp.AppendInt(b, n) } }
	name := func(b []byte, h uint64) []byte {
		if f == sglangArray || f == sglangMap {
			return msgp.AppendInt64(b, int64(h))
		}
		return msgp.AppendUint64(b, h)
	}
	hashes := member{"block_hashes", func(b []byte) []byte {
		b = msgp.AppendArrayHeader(b, uint32(len(e.Hashes)))
		for _, h := range e.Hashes {
			b = name(b, h)
		}
		return b
	}}
	medium := e.Medium
	if medium == "" {
		medium = "GPU"
	}
	group := max(e.Group, 0)
	tag, members := "AllBlocksCleared", []member{}
	switch e.Kind {
	case Removed:
		tag, members = "BlockRemoved", []member{hashes, {"medium", text(medium)}}
		if f == vllmMap || f == vllmArray {
			members = append(members, member{"group_idx", integer(group)})
		}
	case Stored:
		tag = "BlockStored"
		members = []member{hashes, {"parent_block_hash", func(b []byte) []byte {
			if !e.Chained {
				return msgp.AppendNil(b)
			}
			return name(b, e.Parent)
		}}, {"token_ids", func(b []byte) []byte {
			b = msgp.AppendArrayHeader(b, uint32(len(e.Tokens)))
			for _, id := range e.Tokens {
				b = msgp.AppendUint32(b, id)
			}
			return b
		}}, {"block_size", integer(e.BlockSize)}, {"lora_id", msgp.AppendNil}, {"medium", text(medium)}}
		switch f {
		case vllmMap, vllmArray:
			spec := e.Spec
			if spec == "" {
				spec = "full_attention"
			}
			members = append(members, member{"lora_name", text(e.LoRA)}, member{"extra_keys", func(b []byte) []byte {
				b = msgp.AppendArrayHeader(b, uint32(len(e.Hashes)))
				for i := range e.Hashes {
					keys := []string{}
					if e.LoRA != "" {
						keys = append(keys, e.LoRA)
					}
					if e.Salt != "" && i == 0 && !e.Chained {
						keys = append(keys, e.Salt)
					}
					if len(keys) == 0 {
						b = msgp.AppendNil(b)
						continue
					}
					b = msgp.AppendArrayHeader(b, uint32(len(keys)))
					for _, k := range keys {
						b = msgp.AppendString(b, k)
					}
				}
				return b
			}}, member{"group_idx", integer(group)}, member{"kv_cache_spec_kind", text(spec)}, member{"kv_cache_spec_sliding_window", msgp.AppendNil},
				member{"locality", text("")}, member{"ownership", text("")}, member{"session_id", text("a session")}, member{"what_is_to_come", func(b []byte) []byte {
					return msgp.AppendMapStrStr(b, map[string]string{"a": "b"})
				}})
		case sglangMap:
			if e.Salt != "" {
				members = append(members, member{"cache_salt", text(e.Salt)})
			}
			members = append(members, member{"lora_name", text(e.LoRA)})
		case sglangArray:
			if e.Salt != "" {
				members = append(members, member{"", func(b []byte) []byte { return msgp.AppendMapStrStr(b, map[string]string{"cache_salt": e.Salt}) }})
			}
		}
	}
	if f == vllmMap || f == sglangMap {
		b = msgp.AppendMapHeader(b, uint32(1+len(members)))
		b = msgp.AppendString(msgp.AppendString(b, "type"), tag)
		for _, m := range members {
			b = m.value(msgp.AppendString(b, m.name))
		}
		return b
	}
	b = msgp.AppendArrayHeader(b, uint32(1+len(members)))
	b = msgp.AppendString(b, tag)
	for _, m := range members {
		b = m.value(b)
	}
	return b
}
