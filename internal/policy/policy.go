package policy

import (
	"net/http"

	"weir/internal/api"
)

// Policy is what may pass. The zero value lets pass what no operator need know of.
type Policy struct {
	Fields Fields
	Media  Media
	Paths  Paths
}

// CheckRelayed refuses a request that is to be relayed as it came.
func (p *Policy) CheckRelayed(h *api.Head, header http.Header) error {
	if err := p.Fields.CheckHeader(header); err != nil {
		return err
	}
	if err := p.Fields.CheckBody(h); err != nil {
		return err
	}
	return p.Media.CheckMedia(&p.Fields, h)
}

// CheckDecoded refuses a request whose fields have been read for an engine that takes
// ids.
func (p *Policy) CheckDecoded(h *api.Head, r *api.Request) error {
	if err := p.Fields.CheckPriority(r.Priority != nil); err != nil {
		return err
	}
	for i := range r.Media {
		if url := r.Media[i].URL; url != "" && p.Media.Check("", []byte(url)) != nil {
			return p.Media.CheckURLs(h)
		}
	}
	return nil
}
