package slo

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metric is the quantity that an objective bounds.
type Metric string

// The metrics, each of a request, from its intended time.
const (
	TTFT       Metric = "ttft"        // to the first content of any channel
	TTFTAnswer Metric = "ttft_answer" // to the first content of the answer
	TPOT       Metric = "tpot"        // mean time of the tokens after the first
	E2E        Metric = "e2e"         // to the last byte
	Success    Metric = "success"     // that it was complete
)

// Objective is a bound and the share of requests that must keep it.
type Objective struct {
	Metric Metric
	// Share is above 0 and below 1.
	Share float64
	// Bound is the limit for a request; Success has none.
	Bound time.Duration
	text  string
}

// String returns the objective as it was written.
func (o Objective) String() string { return o.text }

// Request holds the figures of a request that objectives use.
type Request struct {
	Complete bool
	// TTFT to E2E are 0 if the request has no such figure: an answer of one token has no
	// TPOT. A missing figure of a complete request is not judged.
	TTFT, TTFTAnswer, TPOT, E2E time.Duration
}

// keeps reports whether a request keeps the objective; counts is false where it
// cannot be judged by it.
func (o *Objective) keeps(r *Request) (kept, counts bool) {
	if !r.Complete {
		return false, true
	}
	d := time.Duration(0)
	switch o.Metric {
	case Success:
		return true, true
	case TTFT:
		d = r.TTFT
	case TTFTAnswer:
		d = r.TTFTAnswer
	case TPOT:
		d = r.TPOT
	case E2E:
		d = r.E2E
	}
	return d <= o.Bound, d > 0
}

// metrics are those with a percentile.
var metrics = []Metric{TTFT, TTFTAnswer, TPOT, E2E}

// Parse reads objectives separated by commas: METRIC_pNN=TIME, such as ttft_p99=500ms or
// tpot_p99.9=50ms, and success=SHARE, such as success=99%. A bound may also be written
// ttft_p99<500ms, and success>99%.
func Parse(text string) ([]Objective, error) {
	var all []Objective
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		o, err := parse(part)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		for _, other := range all {
			if other.Metric == o.Metric && other.Share == o.Share {
				return nil, fmt.Errorf("%q: %q bounds the same", part, other.text)
			}
		}
		all = append(all, o)
	}
	return all, nil
}

func parse(text string) (Objective, error) {
	op := max(strings.IndexAny(text, "<>="), 0)
	name, value := strings.TrimSpace(text[:op]), text[op:]
	side := "<"
	if name == string(Success) {
		side = ">"
	}
	value = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(value, side), "="))
	if name == "" || value == "" || strings.ContainsAny(value, "<>=") {
		return Objective{}, fmt.Errorf("want METRIC_pNN=TIME, as in ttft_p99=500ms, or success=99%%")
	}
	o := Objective{text: name + "=" + value}
	if name == string(Success) {
		o.Metric = Success
		share, err := percent(strings.TrimSuffix(value, "%"))
		if err != nil {
			return o, err
		}
		o.Share = share
		return o, nil
	}
	at := strings.LastIndexByte(name, '_')
	if at < 0 || !slices.Contains(metrics, Metric(name[:at])) {
		return o, fmt.Errorf("no metric %q; the metrics are ttft_pNN, ttft_answer_pNN, tpot_pNN, e2e_pNN and success", name)
	}
	o.Metric = Metric(name[:at])
	digits, ok := strings.CutPrefix(name[at+1:], "p")
	if !ok {
		return o, fmt.Errorf("%q is not a percentile: an objective is a share of requests, as in %s_p99 (p50, p90, p99, p99.9)", name[at+1:], o.Metric)
	}
	if digits == "999" { // as reports have it
		digits = "99.9"
	}
	share, err := percent(digits)
	if err != nil {
		return o, err
	}
	o.Share = share
	if o.Bound, err = time.ParseDuration(value); err != nil || o.Bound <= 0 {
		return o, fmt.Errorf("%q is not a time such as 500ms", value)
	}
	return o, nil
}

// percent reads a share of 100.
func percent(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(v) || v <= 0 || v > 100:
		return 0, fmt.Errorf("%q is not a percentage such as 99%%", text)
	case v > maxPercent:
		return 0, fmt.Errorf("%s %% cannot be shown by any number of requests; give at most %g", text, maxPercent)
	}
	return v / 100, nil
}

// maxPercent keeps the number of requests that a decision takes within reason.
const maxPercent = 99.99

// Needed returns how many requests in a row must keep the objective until it counts
// as met. No smaller number can decide it.
func (o Objective) Needed() int { return int(math.Ceil(z * z * o.Share / (1 - o.Share))) }
