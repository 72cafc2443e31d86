package cli

import (
	"net/http"

	"weir/internal/load/report"
	"weir/internal/trace"
)

// maxDelays bounds the output delays of one answer.
const maxDelays = 2000

// stagesView is the answer of /stages.
type stagesView struct {
	Requests int            `json:"requests"`
	Bands    []report.Band  `json:"bands"`
	Delays   []report.Delay `json:"delays"`
}

// stages reports where the time of ended streams went, by the fair sample.
func (p *process) stages(w http.ResponseWriter, r *http.Request) {
	if p.timeline == nil {
		noRecords(w)
		return
	}
	given := paramsOf(r, queryParams...)
	q := given.query()
	if given.refused(w) {
		return
	}
	found := p.timeline.Sample(q, trace.Now())
	view := stagesView{Requests: len(found), Bands: []report.Band{}, Delays: []report.Delay{}}
	records := make([]*report.Record, len(found))
	for i, rec := range found {
		records[i] = report.Of(rec)
	}
	view.Bands = append(view.Bands, report.Shares(records)...)
	for i := 0; i < len(records) && len(view.Delays) < maxDelays; i++ {
		if d, ok := report.DelayOf(records[i]); ok {
			view.Delays = append(view.Delays, d)
		}
	}
	writeView(w, view)
}
