package allow

import (
	"net/http"

	"weir/internal/dialect"
)

// Rules are what may pass. The zero value lets pass what no operator need know of.
type Rules struct {
	Fields Fields
	Media  Media
	Paths  Paths
}

// CheckRelayed refuses a request that is to be relayed as it came.
func (rules *Rules) CheckRelayed(h *dialect.Head, header http.Header) error {
	if err := rules.Fields.CheckHeader(header); err != nil {
		return err
	}
	if err := rules.Fields.CheckBody(h); err != nil {
		return err
	}
	return rules.Media.CheckMedia(&rules.Fields, h)
}

// CheckDecoded refuses a request whose fields have been read for an engine that takes
// ids.
func (rules *Rules) CheckDecoded(h *dialect.Head, r *dialect.Request) error {
	if err := rules.Fields.CheckPriority(r.Priority != nil); err != nil {
		return err
	}
	for i := range r.Media {
		if url := r.Media[i].URL; url != "" && rules.Media.Check("", []byte(url)) != nil {
			return rules.Media.CheckURLs(h)
		}
	}
	return nil
}
