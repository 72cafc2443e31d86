package report

import (
	"encoding/json"
	"fmt"
	"io"

	"weir/internal/disk"
	"weir/internal/load"
)

// WriteRecord writes all that a run measured, and how its requests fell on the
// engines.
func WriteRecord(w io.Writer, r *Report, record *load.Record) error {
	record.Report = r.Report
	extra, err := json.Marshal(r.Engines)
	if err != nil {
		return err
	}
	return record.Write(w, extra)
}

// MergeRecords makes one report of the records of all workers of a schedule.
// Rows, and with them the attribution of the time, are each worker's own.
func MergeRecords(names []string) (*Report, error) {
	var records []*load.Record
	var all []Engine
	for _, name := range names {
		r, own, err := readRecord(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		records = append(records, r)
		for _, e := range own {
			all = addEngine(all, e)
		}
	}
	merged, err := load.Merge(records)
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	return &Report{Report: merged, Engines: shareOut(all)}, nil
}

func readRecord(name string) (r *load.Record, engines []Engine, err error) {
	f, err := disk.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	r, extra, err := load.ReadRecord(f)
	if err != nil {
		return nil, nil, err
	}
	return r, engines, json.Unmarshal(extra, &engines)
}
