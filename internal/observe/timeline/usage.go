package timeline

import (
	"time"

	"weir/internal/trace"
)

// Usage is the form of a log of what tenants use.
var Usage = Form{Name: "usage log", Append: AppendUsage}

// AppendUsage appends what a request used as one JSON object without a newline. The key is its
// name, never the key itself.
func AppendUsage(dst []byte, r *trace.Record, _ string) []byte {
	o := object{dst: append(dst, '{'), first: true}
	o.str("request_id", r.RequestID)
	o.str("time", trace.Wall(r.Finished).UTC().Format(time.RFC3339Nano))
	o.str("key", r.Key)
	o.str("tenant", r.Tenant)
	o.str("model", r.Model)
	o.str("outcome", r.Outcome.String())
	if r.Code != "" {
		o.str("code", r.Code)
	}
	o.int("prompt_tokens", int64(r.Used.Prompt))
	o.int("cached_tokens", int64(r.Used.Cached))
	o.int("completion_tokens", int64(r.Used.Completion))
	if r.Used.Estimated {
		o.bool("estimated", true)
	}
	if r.Used.Clipped {
		o.bool("clipped", true)
	}
	return append(o.dst, '}')
}
