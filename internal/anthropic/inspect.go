package anthropic

import "weir/internal/api"

// NewInspector implements api.Endpoint.
func (e Endpoint) NewInspector(*api.Head) api.Inspector { return nil }
