package allow

import (
	"net/http"

	"weir/internal/dialect"
)

// Rules decide what may pass. The zero value lets only harmless parts pass.
type Rules struct {
	Fields Fields
	Media  Media
	Paths  Paths
}

// CheckRelayed checks a request that is going to be relayed unchanged.
func (rules *Rules) CheckRelayed(h *dialect.Head, header http.Header) error {
	if err := rules.Fields.CheckHeader(header); err != nil {
		return err
	}
	if err := rules.Fields.CheckBody(h); err != nil {
		return err
	}
	return rules.Media.CheckMedia(&rules.Fields, h)
}

// CheckDecoded checks a request that was decoded for an engine that takes ids.
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
